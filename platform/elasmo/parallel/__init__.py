"""One model cut along every dimension: layouts, the planner that lists them, the layers and groups they need."""
