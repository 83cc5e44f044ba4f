package request_test

import (
	"bytes"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

func TestChoices(t *testing.T) {
	cases := []struct {
		name string
		api  pd.API
		in   string
		want int
	}{
		{"none asked for", pd.APIChat, `{"messages":[]}`, 1},
		{"null", pd.APIChat, `{"messages":[],"n":null}`, 1},
		{"two of a chat", pd.APIChat, `{"messages":[],"n":2}`, 2},
		{"three of a completion", pd.APICompletions, `{"prompt":"x","n":3}`, 3},
		{"spelled by an escape", pd.APICompletions, `{"prompt":"x","\u006e":3}`, 3},
		{"what engines refuse", pd.APIChat, `{"messages":[],"n":0}`, 1},
		{"more than any engine has", pd.APIChat, `{"messages":[],"n":99999999999}`, 1},
		{"no integer", pd.APIChat, `{"messages":[],"n":2.0}`, 1},
		{"text", pd.APIChat, `{"messages":[],"n":"2"}`, 1},
		{"of generate", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"n":4}}`, 4},
		{"of SGLang", pd.APISGLang, `{"text":"x","n":3,"sampling_params":{"n":4}}`, 4},
		{"of an API without choices", pd.APIResponses, `{"input":"x","n":4}`, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := asked(t, c.api, c.in).Choices(); got != c.want {
				t.Errorf("%s: got %d, want %d", c.in, got, c.want)
			}
		})
	}
}

// A request for one choice differs from the client's only in what counts choices, and in the seed.
func TestChoice(t *testing.T) {
	cases := []struct {
		name        string
		api         pd.API
		in          string
		first, last string // of the bodies for choices 0 and 2
		fit         request.Fit
	}{
		{"chat", pd.APIChat, `{"messages":[], "n" : 3, "x":1e2}`, `{"messages":[], "x":1e2}`, `{"messages":[], "x":1e2}`, split},
		{"seed", pd.APIChat, `{"messages":[],"n":3,"seed":41}`, `{"messages":[],"seed":41}`, `{"messages":[],"seed":43}`, split},
		{"a negative seed", pd.APIChat, `{"messages":[],"n":3,"seed":-1}`, `{"messages":[],"seed":-1}`, `{"messages":[],"seed":1}`, split},
		{"the largest seed", pd.APIChat, `{"messages":[],"n":3,"seed":9223372036854775807}`, `{"messages":[],"seed":9223372036854775807}`,
			`{"messages":[],"seed":-9223372036854775807}`, split},
		{"no seed", pd.APIChat, `{"messages":[],"n":3,"seed":null}`, `{"messages":[],"seed":null}`, `{"messages":[],"seed":null}`, split},
		{"what is no seed", pd.APIChat, `{"messages":[],"n":3,"seed":1.5}`, `{"messages":[],"seed":1.5}`, `{"messages":[],"seed":1.5}`, split},
		{"two seeds", pd.APIChat, `{"seed":7,"messages":[],"n":3,"seed":41}`, `{"seed":7,"messages":[],"seed":41}`, `{"messages":[],"seed":43}`, split},
		{"the best of as many", pd.APICompletions, `{"prompt":"x","n":3,"best_of":3}`, `{"prompt":"x"}`, `{"prompt":"x"}`, split},
		{"the best of more", pd.APICompletions, `{"prompt":"x","n":3,"best_of":4}`, `{"prompt":"x"}`, `{"prompt":"x"}`, local},
		{"several prompts", pd.APICompletions, `{"prompt":["a","b"],"n":3}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"]}`, local},
		{"generate", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"n":3,"seed":5}}`, `{"token_ids":[1],"sampling_params":{"seed":5}}`,
			`{"token_ids":[1],"sampling_params":{"seed":7}}`, split},
		{"what is stripped", pd.APIChat, `{"messages":[],"bootstrap_room":1,"n":3}`, `{"messages":[]}`, `{"messages":[]}`, split},
		{"SGLang", pd.APISGLang, `{"text":"x","sampling_params":{"sampling_seed":5,"n":3,"max_new_tokens":2}}`,
			`{"text":"x","sampling_params":{"sampling_seed":5,"max_new_tokens":2}}`, `{"text":"x","sampling_params":{"sampling_seed":7,"max_new_tokens":2}}`,
			asked(t, pd.APISGLang, `{"text":"x","sampling_params":{}}`).Fit()},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := asked(t, c.api, c.in)
			whole := r.Fit()
			for i, want := range map[int]string{0: c.first, 2: c.last} {
				one := r.Choice(i)
				if got := one.Fit(); got != c.fit {
					t.Errorf("choice %d: fit %d, want %d", i, got, c.fit)
				}
				l, err := one.Local()
				if got := string(bytes.Join(l.Segments, nil)); err != nil || got != want || l.Length != int64(len(want)) {
					t.Errorf("choice %d: %s, %d bytes (%v), want %s", i, got, l.Length, err, want)
				}
			}
			if r.Fit() != whole || whole != local {
				t.Errorf("the client's request: fit %d, then %d", whole, r.Fit())
			}
		})
	}
}

// A leg of a dialect is made from the request for one choice as from a client's.
func TestEditChoice(t *testing.T) {
	e, err := asked(t, pd.APIChat, `{"n":2,"messages":[],"stream":true,"seed":1}`).Choice(1).Edit()
	if err != nil {
		t.Fatal(err)
	}
	e.Set("bootstrap_room", []byte("7"))
	e.Set("stream", []byte("false"))
	l, err := e.Payload()
	if got, want := string(bytes.Join(l.Segments, nil)), `{"messages":[],"stream":false,"seed":2,"bootstrap_room":7}`; err != nil || got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
}
