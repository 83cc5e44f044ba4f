package producer

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// burstOf builds a producer, with its defaults changed.
func burstOf(tb testing.TB, change func(*BurstPrefixCache)) *burstPrefixCache {
	tb.Helper()
	p := NewBurstPrefixCache().(*BurstPrefixCache)
	if change != nil {
		change(p)
	}
	if found := problems(p); found != nil {
		tb.Fatal(found)
	}
	instance, err := p.Build(&epp.Builder{})
	if err != nil {
		tb.Fatal(err)
	}
	return instance.(*burstPrefixCache)
}

// spell makes a prompt of one block for each letter.
func spell(letters string) *epp.Prompt {
	p := &epp.Prompt{Tokens: 64 * len(letters), BlockTokens: 64}
	hash := uint64(1)
	for _, l := range letters {
		hash = hash*0x9e3779b97f4a7c15 + uint64(l)
		p.Blocks = append(p.Blocks, hash)
	}
	return p
}

// pods makes candidates of some roles.
func pods(roles ...pd.Role) []epp.Candidate {
	c := make([]epp.Candidate, len(roles))
	for i, role := range roles {
		c[i] = epp.Candidate{Endpoint: &epp.Endpoint{Slot: i, Role: role}, Load: &epp.Load{}, Cached: -1}
	}
	return c
}

// place has a request placed: where the producer says, or at another candidate, whose index is the second result.
func place(b *burstPrefixCache, p *epp.Prompt, c []epp.Candidate, other int) (text string) {
	text, at := "-", other
	b.Match(nil, p, c)
	for i := range c {
		if c[i].Cached == min(len(p.Blocks)*64, p.Tokens) {
			text, at = strconv.Itoa(i), i
		}
	}
	b.Learn(nil, p, c[at].Endpoint, c[at].Load)
	return text
}

// TestBurst places requests one after the other at endpoints 0, 1, … Those that the producer says nothing about (-) take turns.
func TestBurst(t *testing.T) {
	for _, tc := range []struct {
		name      string
		change    func(*BurstPrefixCache)
		endpoints int
		prompts   string
		want      string
	}{
		{"equal prompts follow the first", nil, 3, "ab ab ab", "- 0 0"},
		{"two groups", nil, 3, "ab cd ab cd ab", "- - 0 1 0"},
		{"prompts without another", nil, 3, "ab cd ef", "- - -"},
		{"prompts that share their beginning", nil, 3, "abc abd", "- -"},
		{"a prompt and a longer one", nil, 3, "ab abc", "- -"},

		{"at most two at an endpoint", func(p *BurstPrefixCache) { p.MaxPerReplica = 2 }, 3, "a a a a a a", "- 0 1 1 2 2"},
		{"more than all may have", func(p *BurstPrefixCache) { p.MaxPerReplica = 1 }, 2, "a a a a", "- 1 0 1"},
		{"spilled to the one that got least", func(p *BurstPrefixCache) { p.MaxPerReplica = 2 }, 3, "b c b c a a a", "- - 0 1 - 2 0"},

		{"balanced by requests", func(p *BurstPrefixCache) { p.MaxPerReplica = 1 }, 2, "aaaaaaaa b b b b", "- - 0 1 0"},
		{"balanced by tokens", func(p *BurstPrefixCache) { p.MaxPerReplica, p.BalanceBy = 1, byTokens }, 2, "aaaaaaaa b b b b", "- - 0 1 1"},

		{"shared beginnings, within a fair share", func(p *BurstPrefixCache) { p.MinColocateBlocks = 2 }, 3, "abc abd abe abf", "- 1 2 0"},
		{"shared beginnings, the longest first", func(p *BurstPrefixCache) { p.MinColocateBlocks = 1 }, 2, "ab xy xy xy abcd abc", "- - 1 1 0 0"},
		{"beginnings that are too short", func(p *BurstPrefixCache) { p.MinColocateBlocks = 2 }, 3, "xyz xab", "- -"},
		{"an equal prompt goes before a shared beginning", func(p *BurstPrefixCache) { p.MinColocateBlocks = 1 }, 2, "ab ac ab", "- 1 0"},

		{"prompts that are equal as far as they are compared", func(p *BurstPrefixCache) { p.MaxPrefixTokensToMatch = 128 }, 3, "abc abd", "- 0"},
		{"more requests than are remembered", func(p *BurstPrefixCache) { p.MaxBatchSize = 1 }, 3, "a c c a", "- - - 0"},
		{"no limit", func(p *BurstPrefixCache) { p.MaxBatchSize = -1 }, 3, "a c c a", "- - 1 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, turn := burstOf(t, tc.change), 0
				c := pods(make([]pd.Role, tc.endpoints)...)
				var got []string
				for letters := range strings.FieldsSeq(tc.prompts) {
					p := spell(letters)
					if len(p.Blocks) > b.spec.Max {
						p.Blocks = p.Blocks[:b.spec.Max]
					}
					if _, err := b.Prepare(t.Context(), &epp.Request{Prompt: *p}); err != nil {
						t.Fatal(err)
					}
					text := place(b, p, c, turn%tc.endpoints)
					if got = append(got, text); text == "-" {
						turn++
					}
				}
				if text := strings.Join(got, " "); text != tc.want {
					t.Errorf("%s are placed %s, want %s", tc.prompts, text, tc.want)
				}
			})
		})
	}
}

// TestBurstOfStages: each stage gets its own endpoint, and none where no equal request has been placed.
func TestBurstOfStages(t *testing.T) {
	b, c := burstOf(t, nil), pods(pd.RoleDecode, pd.RoleDecode, pd.RolePrefill, pd.RolePrefill, pd.RoleDecode|pd.RolePrefill)
	learn := func(letters string, at ...int) {
		p := spell(letters)
		if _, err := b.Prepare(t.Context(), &epp.Request{Prompt: *p}); err != nil {
			t.Fatal(err)
		}
		for _, i := range at {
			b.Learn(nil, p, c[i].Endpoint, c[i].Load)
		}
	}
	learn("remote", 1, 2)
	learn("local", 0)
	for letters, want := range map[string][]int{"remote": {1, 2}, "local": {0}} {
		b.Match(nil, spell(letters), c)
		var got []int
		for i := range c {
			if c[i].Cached > 0 {
				got = append(got, i)
			}
		}
		if len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("%s: placed at %v, want %v", letters, got, want)
		}
	}
}

// TestBurstWindow: what was placed in an earlier window does not count.
func TestBurstWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c, p := burstOf(t, nil), pods(0, 0), spell("ab")
		for _, step := range []struct {
			after time.Duration
			want  string
		}{{0, "-"}, {99 * time.Millisecond, "1"}, {time.Millisecond, "-"}, {99 * time.Millisecond, "1"}} {
			time.Sleep(step.after) // of the bubble
			if _, err := b.Prepare(t.Context(), &epp.Request{Prompt: *p}); err != nil {
				t.Fatal(err)
			}
			if got := place(b, p, c, 1); got != step.want {
				t.Errorf("%v later it is placed %s, want %s", step.after, got, step.want)
			}
		}
	})
}

// TestBurstTakesTurns: a request waits only for one with the same prompt, which is being picked for, and no longer than the window.
func TestBurstTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, c := burstOf(t, nil), pods(0, 0)
		prepare := func(p *epp.Prompt) <-chan error {
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), b.Timeout())
				defer cancel()
				_, err := b.Prepare(ctx, &epp.Request{Prompt: *p})
				done <- err
			}()
			synctest.Wait()
			return done
		}
		passed := func(done <-chan error) bool {
			synctest.Wait()
			return len(done) == 1
		}
		long := spell("abab")
		long.BlockTokens = 32 // cut for another matcher too: four blocks of half the length are two of the producer's
		for i := range long.Blocks {
			long.Blocks[i] = spell("ab").Blocks[i/2] - uint64(1-i%2)
		}
		first, other, second, third := prepare(spell("ab")), prepare(spell("cd")), prepare(long), prepare(spell("ab"))
		if !passed(first) || !passed(other) || passed(second) || passed(third) {
			t.Fatal("only the first of each prompt passes at once")
		}
		b.Learn(nil, spell("ab"), c[0].Endpoint, c[0].Load)
		if passed(second) == passed(third) {
			t.Fatal("one more passes when the first has been placed")
		}
		time.Sleep(b.window) // of the bubble: the second is never placed
		if !passed(second) || !passed(third) {
			t.Error("one waits for longer than the window")
		}
		if short := prepare(&epp.Prompt{Tokens: 9, BlockTokens: 64}); !passed(short) || <-short != nil {
			t.Error("a prompt of no whole block waits")
		}
	})
}
