package prefix

import (
	"reflect"
	"strings"
	"testing"
)

// held writes what an endpoint holds of the chains, each a word with a letter for a block.
func held(t *tree, place int, words ...string) (parts []string) {
	for _, w := range words {
		var depth [places]int
		t.measure(letters(w), 1<<place, &depth)
		parts = append(parts, w[:depth[place]])
	}
	return parts
}

func letters(word string) []uint64 {
	var blocks []uint64
	for _, r := range word {
		blocks = append(blocks, uint64(r))
	}
	return chain(blocks...)
}

func TestEviction(t *testing.T) {
	for _, test := range []struct {
		name, words string // added in this order
		capacity    int
		want        string // what the tree must still hold
	}{
		{"all fit", "abc xyz", 6, "abc xyz"},
		{"the end of the oldest goes first", "abcd xyz", 5, "ab xyz"},
		{"a whole chain, then the end of the next", "abc def xyz", 4, " d xyz"},
		{"one longer than the cache keeps its beginning", "abcdef", 4, "abcd"},
		{"and makes all others go", "xy abcdef", 4, " abcd"},
		{"a branch goes before what it shares", "abcd abxy", 4, "ab abxy"},
		{"what branches share goes last", "abcd abxy pqrs", 5, "a a pqrs"},
		{"asking again makes young", "abc xyz abc pq", 5, "abc  abc pq"},
		{"asking for the beginning leaves the end old", "abcd xy ab pq", 6, "ab xy ab pq"},
		{"asking for the end makes the beginning young", "ab xy abcd pq", 6, "ab  abcd pq"},
		{"a middle that was asked for last is no older than its branches", "abcd ab abxy q", 6, "abc ab abxy q"},
		{"branches of a branch", "abcd abce abfg q", 6, "abc abc abfg q"},
		{"one word longer each time", "a ab abc abcd xyz", 5, "a ab ab ab xyz"},
		{"one word shorter each time", "abcd abc ab a xyz", 4, "a a a a xyz"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := new(tree)
			words := strings.Fields(test.words)
			const place, all = 62, 63
			for _, w := range words {
				blocks := letters(w)
				tree.hold(all, blocks, nil) // another endpoint, whose shares must not matter
				tree.hold(place, blocks[:min(len(blocks), test.capacity)], nil)
				tree.shrink(place, test.capacity)
				checkTree(t, tree)
			}
			if got, want := held(tree, place, words...), strings.Split(test.want, " "); !reflect.DeepEqual(got, want) {
				t.Errorf("left are %q, want %q", got, want)
			}
			if got := held(tree, all, words...); !reflect.DeepEqual(got, words) {
				t.Errorf("left of the other are %q, want %q", got, words)
			}
		})
	}
}

func TestShrinkTakesTurns(t *testing.T) {
	tree := new(tree)
	for block := range uint64(turn + 10) {
		tree.hold(0, chain(block), nil)
	}
	if lost, done := tree.shrink(0, 0); lost != turn || done {
		t.Errorf("in the first turn %d blocks went, done: %t", lost, done)
	}
	if lost, done := tree.shrink(0, 4); lost != 6 || !done {
		t.Errorf("in the second turn %d blocks went, done: %t", lost, done)
	}
	checkTree(t, tree)
}

// TestReach lets other prompts leave one at every block: an endpoint gets no more of it than is followed, the others are
// found with no more, and nothing that was cut off is lost to the eviction.
func TestReach(t *testing.T) {
	tree, c := new(tree), new(chains)
	prompt := c.next(reach + 500)
	tree.hold(0, prompt, nil)
	for at := range prompt {
		tree.hold(0, append(prompt[:at:at], c.next(1)...), nil)
	}
	all := tree.slots[0].size
	if fresh := tree.hold(1, prompt, nil); fresh != reach {
		t.Errorf("%d blocks were added, want those of %d segments", fresh, reach)
	}
	tree.hold(0, prompt, nil)
	var depth [places]int
	tree.measure(prompt, 0b11, &depth)
	if depth[0] != reach || depth[1] != reach || tree.known(prompt) != reach {
		t.Errorf("found are %d and %d blocks, %d are known, want %d", depth[0], depth[1], tree.known(prompt), reach)
	}
	checkTree(t, tree)
	for size := all; size > 0; size -= turn {
		tree.shrink(0, size)
		checkTree(t, tree)
	}
	tree.shrink(1, 0)
	for done := false; !done; _, done = tree.shrink(0, 0) {
	}
	for done := false; !done; _, done = tree.shrink(1, 0) {
	}
	if len(tree.heads) > 0 {
		t.Errorf("%d segments are left of nothing", len(tree.heads))
	}
}
