package dialect

import (
	"fmt"
	"testing"
)

func TestBlockSizes(t *testing.T) {
	const size = 16
	need := func(tokens int) int { return (tokens + size - 1) / size }
	whole := func(s *blockSizes, n int) (damaged int) {
		for i := range n {
			if tokens := 1 + i*37%500; s.check("e", tokens, need(tokens)) != nil {
				damaged++
			}
		}
		return damaged
	}
	cases := []struct {
		name           string
		before         func(s *blockSizes)
		tokens, blocks int
		damaged        bool
	}{
		{"nothing is known", func(*blockSizes) {}, 100, 3, false},
		{"little is known", func(s *blockSizes) { whole(s, manyFit-1) }, 100, 3, false},
		{"a block too few", func(s *blockSizes) { whole(s, manyFit) }, 160, 9, true},
		{"a block too many", func(s *blockSizes) { whole(s, manyFit) }, 160, 11, true},
		{"more blocks than tokens", func(s *blockSizes) { whole(s, manyFit) }, 3, 5, true},
		{"the right number", func(s *blockSizes) { whole(s, manyFit) }, 161, 11, false},
		{"prompts of one length", func(s *blockSizes) {
			for range manyFit {
				_ = s.check("e", 100, need(100))
			}
		}, 100, 6, true},
		{"an engine that started with damaged ones", func(s *blockSizes) {
			_, _ = s.check("e", 100, 3), s.check("e", 3, 5)
			whole(s, manyFit+1)
		}, 100, 3, true},
		{"another size under the same id", func(s *blockSizes) {
			whole(s, 2*manyFit)
			for range manyUnfit + 1 {
				_ = s.check("e", 160, 5)
			}
		}, 320, 10, false},
		{"the length of the prompt is not known", func(s *blockSizes) { whole(s, 2*manyFit) }, 0, 3, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var s blockSizes
			c.before(&s)
			if err := s.check("e", c.tokens, c.blocks); (err != nil) != c.damaged {
				t.Errorf("%d tokens in %d blocks: %v", c.tokens, c.blocks, err)
			}
			if err := s.check("other", 100, 3); err != nil {
				t.Errorf("of another engine: %v", err)
			}
		})
	}
	t.Run("whole ones never count as damaged", func(t *testing.T) {
		var s blockSizes
		if n := whole(&s, 10_000); n > 0 {
			t.Errorf("%d of them", n)
		}
	})
	t.Run("an engine with blocks that prompts do not need", func(t *testing.T) {
		var s blockSizes
		refused := 0
		for i := range 10_000 {
			if tokens := 1 + i*37%500; s.check("e", tokens, need(tokens+5)) != nil {
				refused++
			}
		}
		if refused > 0 {
			t.Errorf("%d hand-offs were taken for damaged", refused)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		var s blockSizes
		for i := range 3 * maxBlockSizes {
			_ = s.check(fmt.Sprint(i), 100, 7)
			if n := len(s.engines); n > maxBlockSizes {
				t.Fatalf("%d engines are known", n)
			}
		}
	})
}

func BenchmarkBlockSizes(b *testing.B) {
	var s blockSizes
	b.ReportAllocs()
	for b.Loop() {
		if err := s.check("e", 100, 7); err != nil {
			b.Fatal(err)
		}
	}
}
