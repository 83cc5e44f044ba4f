package read_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// Readers with one secret make the same hashes of a prompt, however it arrives; those with another one, or with the process's, make others.
func TestSecret(t *testing.T) {
	const system = `{"model":"m","cache_salt":"s","tools":[{"name":"t"}],"messages":[{"role":"system","content":"a long beginning of all prompts"},`
	text := system + `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}},{"type":"text","text":"one question, of some blocks"}]}]}`
	other := system + `{"role":"user","content":"another question"}]}`
	prompt := func(r *read.Reader, text string, chunk int) epp.Prompt {
		t.Helper()
		q := readAll(t, r, post(pd.APIChat), blocks, []byte(text), chunk)
		return epp.Prompt{Blocks: slices.Clone(q.Prompt.Blocks), Media: slices.Clone(q.Prompt.Media)}
	}
	secret := &read.Secret{1}
	want := prompt(read.NewReader(secret), text, len(text))
	if len(want.Blocks) == 0 || len(want.Media) != 1 {
		t.Fatalf("the prompt is %+v", want)
	}
	used := read.NewReader(secret)
	for _, chunk := range []int{1, 7, len(text)} {
		if got := prompt(used, text, chunk); !slices.Equal(got.Blocks, want.Blocks) || !slices.Equal(got.Media, want.Media) {
			t.Errorf("in chunks of %d, the prompt is %+v, want %+v", chunk, got, want)
		}
	}
	for name, r := range map[string]*read.Reader{"another secret": read.NewReader(&read.Secret{2}), "the process": read.NewReader(nil)} {
		got := prompt(r, text, len(text))
		for i := range got.Blocks {
			if slices.Contains(want.Blocks, got.Blocks[i]) {
				t.Errorf("%s: block %d has the same hash", name, i)
			}
		}
		if len(got.Blocks) != len(want.Blocks) || got.Media[0] == want.Media[0] {
			t.Errorf("%s: the prompt is %+v", name, got)
		}
	}
	begins := prompt(used, other, len(other)).Blocks
	if begins[0] != want.Blocks[0] || begins[len(begins)-1] == want.Blocks[len(begins)-1] {
		t.Errorf("prompts that begin alike have %v and %v", begins, want.Blocks)
	}
}
