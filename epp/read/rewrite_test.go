package read_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// aliases rewrites "alias" to "target/模型", "self" to itself, and all else to "catch".
var aliases = epp.NewPolicy([]epp.Objective{{Name: "fast", Priority: 7}}, []epp.Rewrite{
	{Name: "canary", Rules: []epp.RewriteRule{forModel("alias", "target/模型"), forModel("self", "self")}},
	{Name: "catch-all", Rules: []epp.RewriteRule{{Targets: to("catch")}}},
})

func to(models ...string) (all []epp.RewriteTarget) {
	for _, m := range models {
		all = append(all, epp.RewriteTarget{Model: m, Weight: 1})
	}
	return all
}

func forModel(model, target string) epp.RewriteRule {
	return epp.RewriteRule{Models: []string{model}, Targets: to(target)}
}

// aliasOnly leaves other models alone.
var aliasOnly = epp.NewPolicy(nil, []epp.Rewrite{{Name: "canary", Rules: []epp.RewriteRule{forModel("alias", "target")}}})

// rewrite reads a body in chunks of a size, 0 = whole, under a policy.
func rewrite(h read.Head, p *epp.Policy, text string, chunk int) (*epp.Request, []byte, error) {
	var r read.Reader
	r.Reset(h, 0, blocks)
	if chunk == 0 {
		chunk = max(1, len(text))
	}
	for part := range slices.Chunk([]byte(text), chunk) {
		if err := r.Write(part); err != nil {
			return nil, nil, err
		}
	}
	q, err := r.Close(p)
	return q, bytes.Join(r.Segments(), nil), err
}

func TestReaderRewrites(t *testing.T) {
	with := func(target string) read.Head { h := post(pd.APIChat); h.Target = target; return h }
	for _, c := range []struct {
		name     string
		head     read.Head
		policy   *epp.Policy
		in, want string // want "" = as it came
		model    string
		asked    string
		by       string
	}{
		{"no policy", post(pd.APIChat), nil, `{"model":"alias"}`, ``, "alias", "", ""},
		{"nothing said of it", post(pd.APIChat), aliasOnly, `{"model":"m"}`, ``, "m", "", ""},
		{"rewritten", post(pd.APIChat), aliases, `{ "messages" : [], "model" : "alias" ,"x":1e2}`, `{ "messages" : [], "model" : "target/模型" ,"x":1e2}`, "target/模型", "alias", "canary"},
		{"spelled with escapes", post(pd.APIChat), aliases, `{"mod\u0065l":"\u0061lias"}`, `{"mod\u0065l":"target/模型"}`, "target/模型", "alias", "canary"},
		{"other members of the name", post(pd.APIChat), aliases, `{"x":{"model":"alias"},"model":"alias"}`, `{"x":{"model":"alias"},"model":"target/模型"}`, "target/模型", "alias", "canary"},
		{"to itself", post(pd.APIChat), aliases, `{"model":"self"}`, ``, "self", "", "canary"},
		{"every model", post(pd.APIChat), aliases, `{"model":"m"}`, `{"model":"catch"}`, "catch", "m", "catch-all"},
		{"none named", post(pd.APIChat), aliases, `{"messages":[]}`, `{"messages":[],"model":"catch"}`, "catch", "", "catch-all"},
		{"nothing said at all", post(pd.APIChat), aliases, ` {} `, ` {"model":"catch"} `, "catch", "", "catch-all"},
		{"null", post(pd.APIChat), aliases, `{"model":null}`, `{"model":"catch"}`, "catch", "", "catch-all"},
		{"an empty name", post(pd.APIChat), aliases, `{"model":""}`, `{"model":"catch"}`, "catch", "", "catch-all"},
		{"no name", post(pd.APIChat), aliases, `{"model":7}`, ``, "", "", ""},
		{"by the gateway's header", with("wanted"), aliasOnly, `{"model":"m"}`, `{"model":"wanted"}`, "wanted", "m", epp.HeaderTarget},
		{"the header says the same", with("m"), aliasOnly, `{"model":"m"}`, ``, "m", "", epp.HeaderTarget},
		{"the pool before the header", with("wanted"), aliasOnly, `{"model":"alias"}`, `{"model":"target"}`, "target", "alias", "canary"},
		{"the header without a policy", with("wan\"ted"), nil, `{}`, `{"model":"wan\"ted"}`, "wan\"ted", "", epp.HeaderTarget},
		{"what generates nothing", read.Head{Method: "POST", Path: "/tokenize", Target: "wanted"}, aliases, `{"model":"alias"}`, ``, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := c.want
			if want == "" {
				want = c.in
			}
			for chunk := range len(c.in) {
				q, out, err := rewrite(c.head, c.policy, c.in, chunk)
				if err != nil || string(out) != want {
					t.Fatalf("chunks of %d bytes: %s, %v; want %s", chunk, out, err, want)
				}
				if q.Model != c.model || q.Asked != c.asked || q.Rewrite != c.by {
					t.Fatalf("chunks of %d bytes: %+v", chunk, q)
				}
			}
		})
	}
}

// Every API names its model at the same place.
func TestReaderRewritesAllAPIs(t *testing.T) {
	for _, api := range pd.APIs() {
		if q, out, err := rewrite(post(api), aliases, `{"model":"alias"}`, 0); err != nil || string(out) != `{"model":"target/模型"}` || q.Model != "target/模型" {
			t.Errorf("%v: %s, %+v, %v", api, out, q, err)
		}
	}
}

func TestReaderRefusesTargets(t *testing.T) {
	for _, target := range []string{strings.Repeat("m", 1025), "\xff"} {
		h := post(pd.APIChat)
		h.Target = target
		if _, _, err := rewrite(h, nil, `{}`, 0); pd.AsRefusal(err).Reason != pd.BadRequest || !strings.Contains(err.Error(), epp.HeaderTarget) {
			t.Errorf("%d bytes: %v", len(target), err)
		}
		if _, _, err := rewrite(h, aliases, `{}`, 0); err != nil {
			t.Errorf("a header that does not count: %v", err)
		}
	}
	var refused *pd.Refusal
	if _, _, err := rewrite(post(pd.APIChat), aliases, `{"model":"alias"`, 0); !errors.As(err, &refused) {
		t.Errorf("a broken body: %v", err)
	}
}

// All but the name goes on in the slices it came in.
func TestReaderCopiesNoRewrittenBody(t *testing.T) {
	chunks := [][]byte{[]byte(`{"messages":[],"mo`), []byte(`del":"al`), []byte(`ias","stream":true`), []byte(`}`)}
	var r read.Reader
	for range 2 { // a reader is reused
		r.Reset(post(pd.APIChat), 0, blocks)
		for _, c := range chunks {
			if err := r.Write(c); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.Close(aliases); err != nil {
			t.Fatal(err)
		}
		got := r.Segments()
		if joined := string(bytes.Join(got, nil)); joined != `{"messages":[],"model":"target/模型","stream":true}` {
			t.Fatalf("got %s", joined)
		}
		if len(got) != 5 || &got[0][0] != &chunks[0][0] || &got[1][0] != &chunks[1][0] || &got[3][0] != &chunks[2][4] || &got[4][0] != &chunks[3][0] {
			t.Errorf("segments %q", got)
		}
		if whole := bytes.Join(r.Body().Segments(), nil); !bytes.Equal(whole, bytes.Join(chunks, nil)) {
			t.Errorf("what was read is %s", whole)
		}
		r.Reset(post(pd.APIChat), 0, blocks)
		if left := r.Segments(); len(left) > 0 {
			t.Errorf("after Reset: %q", left)
		}
	}
}

// A prefix is that of the model that answers: two targets share no blocks, and an alias shares those of its target.
func TestBlocksAreOfTheTargetModel(t *testing.T) {
	keys := func(policy *epp.Policy, model string) []uint64 {
		t.Helper()
		q, _, err := rewrite(post(pd.APICompletions), policy, `{"model":"`+model+`","prompt":"a prompt of several blocks of 16 bytes, say"}`, 0)
		if err != nil || len(q.Prompt.Blocks) < 2 {
			t.Fatal(q, err)
		}
		return slices.Clone(q.Prompt.Blocks)
	}
	if !slices.Equal(keys(aliasOnly, "alias"), keys(aliasOnly, "target")) {
		t.Error("an alias has other blocks than its target")
	}
	if slices.Equal(keys(aliasOnly, "alias"), keys(nil, "alias")) {
		t.Error("the blocks are those of the name that was asked for")
	}
}

func TestReaderKnowsTheObjective(t *testing.T) {
	for _, c := range []struct {
		objective string
		policy    *epp.Policy
		priority  int
		known     bool
	}{{"fast", aliases, 7, true}, {"slow", aliases, 0, false}, {"fast", nil, 0, false}, {"", aliases, 0, false}} {
		for _, path := range []string{"/v1/chat/completions", "/tokenize"} {
			h := read.Head{Method: "POST", Path: path, Objective: c.objective}
			q, _, err := rewrite(h, c.policy, `{"model":"self"}`, 0)
			if err != nil || q.Objective != c.objective || q.Priority != c.priority || q.Known != c.known {
				t.Errorf("%q at %s: %+v, %v", c.objective, path, q, err)
			}
		}
	}
}

// FuzzRewrite: whatever the body, only the model changes, and its length is the only thing that does.
func FuzzRewrite(f *testing.F) {
	for _, text := range seeds() {
		f.Add([]byte(text), "alias", []byte{3, 30})
	}
	f.Add([]byte(`{"a":[1],"model":"alias","b":{"model":"alias"}}`), "target", []byte{1})
	f.Fuzz(func(t *testing.T, text []byte, target string, sizes []byte) {
		if target == "" || !utf8.ValidString(target) {
			return // neither Kubernetes nor a file has such names
		}
		policy := epp.NewPolicy(nil, []epp.Rewrite{{Name: "r", Rules: []epp.RewriteRule{{Targets: to(target)}}}})
		var r read.Reader
		r.Reset(post(pd.APIChat), 0, blocks)
		for _, chunk := range cut(text, sizes) {
			if r.Write(chunk) != nil {
				return
			}
		}
		if _, err := r.Close(policy); err != nil {
			return
		}
		var before, after map[string]any
		if json.Unmarshal(text, &before) != nil {
			return // what Python reads and encoding/json does not
		}
		out := bytes.Join(r.Segments(), nil)
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%s became %s: %v", text, out, err)
		}
		if model := before["model"]; model == nil || reflect.TypeOf(model).Kind() == reflect.String {
			before["model"] = target
		}
		if !reflect.DeepEqual(before, after) {
			t.Fatalf("%s became %s", text, out)
		}
	})
}
