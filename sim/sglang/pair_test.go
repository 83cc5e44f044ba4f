package sglang_test

import (
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTokensOfAPair: a pair generates what a plain engine does, of prompts of every length, whole and again from the prefix cache.
func TestTokensOfAPair(t *testing.T) {
	plain, pair := simtest.SGLang(t, sglang.Plain), simtest.SGLangPair(t)
	room := uint64(1)
	for i, n := range []int{1, 3, 15, 16, 17, 40, 64, 1000, 4000} {
		for _, cached := range []int{0, (n - 1) / 16 * 16} {
			prompt := simtest.Prompt(i, n)
			want := simtest.Post(t, plain.URL+"/generate", simtest.Generate(prompt, 8)).Decoded(t)
			room++
			p, d := pair.Send(t, "/generate", simtest.Generate(prompt, 8, simtest.Meet(pair.Prefill, room)))
			first, got := p.Decoded(t), d.Decoded(t)
			if !slices.Equal(got.OutputIDs, want.OutputIDs) || got.Text != want.Text {
				t.Errorf("%d tokens: pair generated %v, plain engine %v", n, got.OutputIDs, want.OutputIDs)
			}
			if len(first.OutputIDs) != 1 || first.OutputIDs[0] != want.OutputIDs[0] {
				t.Errorf("%d tokens: prefill generated %v, want the first token", n, first.OutputIDs)
			}
			if got.MetaInfo.CachedTokens != cached || first.MetaInfo.CachedTokens != cached {
				t.Errorf("%d tokens: %d and %d cached, want %d on both legs", n, first.MetaInfo.CachedTokens, got.MetaInfo.CachedTokens, cached)
			}
		}
	}
	pair.Rests(t)
	if st := pair.Decode.Engine.State(); st.ForeignReads != 0 || st.KVBytesRead == 0 {
		t.Errorf("decode %+v, want KV of these prompts", st)
	}
}
