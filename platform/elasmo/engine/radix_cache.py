"""A prefix cache as a radix tree (Zheng et al. 2024, RadixAttention): finding a beginning costs one walk along it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from elasmo.engine.prefix_cache import Key, blocks_of

Block = tuple[Key, ...]


class _Node:
    """A run of blocks without a fork; all of them were last used at the same time."""

    def __init__(self, blocks: list[Block], pages: list[int], parent: _Node | None, tick: int) -> None:
        self.blocks = blocks
        self.pages = pages
        self.parent = parent
        self.tick = tick
        self.children: dict[Block, _Node] = {}


class RadixCache:
    """Implements `PrefixCache`."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._root = _Node([], [], None, 0)
        self._tick = 0

    def match(self, keys: Sequence[Key]) -> tuple[int, ...]:
        path = self._walk(blocks_of(keys, self._block_size))
        return tuple(page for node in path for page in node.pages)

    def insert(self, keys: Sequence[Key], pages: Sequence[int]) -> tuple[int, ...]:
        blocks = blocks_of(keys, self._block_size)[: len(pages)]
        path = self._walk(blocks)
        known = [page for node in path for page in node.pages]
        if len(known) < len(blocks):
            parent = path[-1] if path else self._root
            fresh = _Node(blocks[len(known) :], list(pages[len(known) : len(blocks)]), parent, self._tick)
            parent.children[fresh.blocks[0]] = fresh
            known += fresh.pages
        return tuple(known)

    def evict(self, count: int, in_use: Callable[[int], bool]) -> list[int]:
        # One pass over the leaves for all `count` pages; a node's number only breaks ties between nodes, never read.
        leaves = [(node.tick, number, node) for number, node in enumerate(self._leaves())]
        heapq.heapify(leaves)
        gone: list[int] = []
        while leaves and len(gone) < count:
            _, number, node = heapq.heappop(leaves)
            while node.pages and len(gone) < count and not in_use(node.pages[-1]):
                gone.append(node.pages.pop())
                first = node.blocks[0]
                node.blocks.pop()
            if node.pages or node.parent is None:
                continue
            del node.parent.children[first]
            if not node.parent.children and node.parent is not self._root:
                heapq.heappush(leaves, (node.parent.tick, number, node.parent))
        return gone

    def clear(self) -> list[int]:
        pages: list[int] = []
        stack = [self._root]
        while stack:
            node = stack.pop()
            pages += node.pages
            stack.extend(node.children.values())
        self._root = _Node([], [], None, 0)
        return pages

    def _walk(self, blocks: Sequence[Block]) -> list[_Node]:
        """Nodes that hold the longest known beginning of `blocks`, the last one cut off where it ends; all used now."""
        self._tick += 1
        node, path, at = self._root, [], 0
        while at < len(blocks) and (child := node.children.get(blocks[at])) is not None:
            shared = 1
            while (
                shared < len(child.blocks) and at + shared < len(blocks) and child.blocks[shared] == blocks[at + shared]
            ):
                shared += 1
            if shared < len(child.blocks):
                child = self._split(child, shared)
            child.tick = self._tick
            path.append(child)
            node, at = child, at + shared
        return path

    def _split(self, node: _Node, at: int) -> _Node:
        """Cuts a node in two before block `at`; returns the upper half, now the parent of the other."""
        upper = _Node(node.blocks[:at], node.pages[:at], node.parent, node.tick)
        assert node.parent is not None  # the root has no blocks to cut
        node.parent.children[upper.blocks[0]] = upper
        node.blocks, node.pages, node.parent = node.blocks[at:], node.pages[at:], upper
        upper.children[node.blocks[0]] = node
        return upper

    def _leaves(self) -> list[_Node]:
        leaves, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            if node.children:
                stack.extend(node.children.values())
            else:
                leaves.append(node)
        return leaves
