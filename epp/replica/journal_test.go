package replica

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestJournal: a reader that is slow misses the oldest prompts, whether there were too many or too long ones, and is told how many.
func TestJournal(t *testing.T) {
	j := &journal{hashes: make([]uint64, 10), prompts: make([]learned, 4)}
	at := uint64(0)
	read := func() (text string) {
		for {
			one, blocks, lost, ok := j.next(&at, nil)
			if lost > 0 {
				text += fmt.Sprintf("lost %d ", lost)
			}
			if !ok {
				return strings.TrimSpace(text)
			}
			text += fmt.Sprintf("%s%v ", one.matcher, blocks)
		}
	}
	e := endpoint("a")
	for _, c := range []struct {
		name string
		add  [][]uint64
		want string
	}{
		{"nothing", nil, ""},
		{"in order", [][]uint64{{1, 2, 3}, {4}}, "m[1 2 3] m[4]"},
		{"across the end of the ring", [][]uint64{{5, 6, 7, 8, 9, 10, 11, 12}}, "m[5 6 7 8 9 10 11 12]"},
		{"too many hashes", [][]uint64{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}}, "lost 1 m[5 6 7 8] m[9 10 11 12]"},
		{"too many prompts", [][]uint64{{1}, {2}, {3}, {4}, {5}, {6}}, "lost 2 m[3] m[4] m[5] m[6]"},
		{"longer than the ring", [][]uint64{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}, "m[1 2 3 4 5 6 7 8 9 10]"},
		{"all are lost but the last", [][]uint64{{1}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, "lost 1 m[1 2 3 4 5 6 7 8 9 10]"},
	} {
		for _, blocks := range c.add {
			j.add("m", e, blocks)
		}
		if got := read(); got != c.want {
			t.Errorf("%s: read %q, want %q", c.name, got, c.want)
		}
	}
}

// TestRate: a replica is told of prompts at a rate, and of one that is longer than a line may be at the cost of the next ones. Nothing is lost.
func TestRate(t *testing.T) {
	var pool fakePool
	e := endpoint("a")
	pool.set(e)
	x := New(Options{Pool: &pool, Secret: "s"})
	perLine := int(promptRate*DefaultInterval.Seconds()/8) + 1 // hashes, so that a line has no byte left
	for _, c := range []struct {
		name   string
		blocks []int // of the prompts
		want   []int // prompts in each line
	}{
		{"short ones", []int{1, 1, 1}, []int{3, 0}},
		{"one for each line", []int{perLine, perLine, 1}, []int{1, 1, 1, 0}},
		{"a long one", []int{3 * perLine, 1}, []int{1, 0, 0, 1, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := line{prompts: true, at: x.journal.last}
			for _, n := range c.blocks {
				x.journal.add("m", e, make([]uint64, n))
			}
			var got []int
			for range c.want {
				l.text = l.text[:0]
				x.addPrompts(&l)
				got = append(got, strings.Count(string(l.text), `"of"`))
			}
			if !reflect.DeepEqual(got, c.want) || x.untold.Load() != 0 {
				t.Errorf("lines have %v prompts, want %v; %d were lost", got, c.want, x.untold.Load())
			}
		})
	}
}

// TestHashesAreRead: what another replica says about prompts is bounded and whole.
func TestHashesAreRead(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes int
		ok    bool
	}{{"none", 0, true}, {"three", 24, true}, {"a part of one", 23, false}, {"too many", 8 * (maxBlocks + 1), false}} {
		p := prompt{Blocks: make([]byte, c.bytes)}
		if all, err := p.hashes(); (err == nil) != c.ok || c.ok && len(all) != c.bytes/8 {
			t.Errorf("%s: %d hashes, %v", c.name, len(all), err)
		}
	}
	// The longest prompt fits into a line.
	l := line{blocks: make([]uint64, maxBlocks)}
	l.addPrompt(&learned{matcher: "m", to: endpoint("a")})
	if len(l.text) > maxLine/2 {
		t.Errorf("the longest prompt makes a line of %d bytes, of %d", len(l.text), maxLine)
	}
}

// TestPromptsOnTheWire pins the form of prompts in lines: replicas of different versions exchange them during an upgrade.
func TestPromptsOnTheWire(t *testing.T) {
	var pool fakePool
	e := endpoint("a")
	pool.set(e)
	x := New(Options{Pool: &pool, Secret: "s"})
	x.journal.add("approx/16", e, []uint64{1, 0x0807060504030201})
	l := line{prompts: true}
	if !x.changes(&l) {
		t.Fatal("nothing is told")
	}
	var got struct{ Prompts []map[string]string }
	if err := json.Unmarshal(l.text, &got); err != nil {
		t.Fatalf("%v: %s", err, l.text)
	}
	want := []map[string]string{{"of": "approx/16", "to": "default/a",
		"blocks": base64.StdEncoding.EncodeToString([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8})}}
	if !reflect.DeepEqual(got.Prompts, want) {
		t.Errorf("told is %v, want %v", got.Prompts, want)
	}
	if l := (line{}); x.changes(&l) {
		t.Errorf("a replica with another secret is told %s", l.text)
	}
}

// BenchmarkJournal is what telling others costs a pick.
func BenchmarkJournal(b *testing.B) {
	for _, blocks := range []int{64, 4096} {
		b.Run(fmt.Sprint(blocks), func(b *testing.B) {
			j, all := newJournal(), make([]uint64, blocks)
			e := epp.Endpoint{}
			b.ReportAllocs()
			for b.Loop() {
				j.add("approx-prefix-cache-producer/16", &e, all)
			}
		})
	}
}
