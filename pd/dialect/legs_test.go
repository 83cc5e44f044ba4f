package dialect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// odd are bodies as no library of ours would write them, and what must become of them byte by byte. $P and $H stand
// for what prefill is asked with and what it offered.
var odd = []struct {
	name                       string
	api                        pd.API
	in, prefill, decode, local string // local "" = as it came in
}{
	{
		"nothing to touch but what is added", pd.APICompletions,
		`{"prompt":"x"}`,
		`{"prompt":"x","max_tokens":1,"kv_transfer_params":$P}`,
		`{"prompt":"x","kv_transfer_params":$H}`, "",
	}, {
		"responses", pd.APIResponses,
		`{"input":"x","max_tokens":7,"max_output_tokens":9,"stream":true,"store":true,"kv_transfer_params":{}}`,
		`{"input":"x","max_tokens":7,"max_output_tokens":1,"stream":false,"store":false,"kv_transfer_params":$P}`,
		`{"input":"x","max_tokens":7,"max_output_tokens":9,"stream":true,"store":true,"kv_transfer_params":$H}`,
		`{"input":"x","max_tokens":7,"max_output_tokens":9,"stream":true,"store":true}`,
	}, {
		"responses without a limit", pd.APIResponses,
		`{"input":"x"}`,
		`{"input":"x","max_output_tokens":1,"store":false,"kv_transfer_params":$P}`,
		`{"input":"x","kv_transfer_params":$H}`, "",
	}, {
		"generate", pd.APIGenerate,
		`{"token_ids":[1,2],"stream":true,"sampling_params":{"min_tokens":2,"seed":1,"max_tokens":9,"extra_args":{"kv_transfer_params":{},"a":1}}}`,
		`{"token_ids":[1,2],"stream":false,"sampling_params":{"seed":1,"max_tokens":1,"extra_args":{"a":1}},"kv_transfer_params":$P}`,
		`{"token_ids":[1,2],"stream":true,"sampling_params":{"min_tokens":2,"seed":1,"max_tokens":9,"extra_args":{"a":1}},"kv_transfer_params":$H}`,
		`{"token_ids":[1,2],"stream":true,"sampling_params":{"min_tokens":2,"seed":1,"max_tokens":9,"extra_args":{"a":1}}}`,
	}, {
		"generate without a limit", pd.APIGenerate,
		`{"token_ids":[1,2],"sampling_params":{}}`,
		`{"token_ids":[1,2],"sampling_params":{"max_tokens":1},"kv_transfer_params":$P}`,
		`{"token_ids":[1,2],"sampling_params":{},"kv_transfer_params":$H}`, "",
	}, {
		"generate with nothing but what goes", pd.APIGenerate,
		`{"sampling_params":{"min_tokens":1},"token_ids":[1,2]}`,
		`{"sampling_params":{"max_tokens":1},"token_ids":[1,2],"kv_transfer_params":$P}`,
		`{"sampling_params":{"min_tokens":1},"token_ids":[1,2],"kv_transfer_params":$H}`, "",
	}, {
		"messages", pd.APIMessages,
		`{"messages":[],"system":"s","max_tokens":9,"stream":true,"thinking":{"type":"enabled","budget_tokens":4}}`,
		`{"messages":[],"system":"s","max_tokens":1,"stream":false,"thinking":{"type":"enabled","budget_tokens":4},"kv_transfer_params":$P}`,
		`{"messages":[],"system":"s","max_tokens":9,"stream":true,"thinking":{"type":"enabled","budget_tokens":4},"kv_transfer_params":$H}`, "",
	}, {
		"an empty object", pd.APIChat,
		`{ }`, `{ "max_tokens":1,"kv_transfer_params":$P}`, `{ "kv_transfer_params":$H}`, "",
	}, {
		"white space of every kind", pd.APIChat,
		"\r\n{\t\"messages\" :\n[ ] ,\"stream\"\t:  true ,\n \"max_tokens\" : 300\r\n}\n\n",
		"\r\n{\t\"messages\" :\n[ ] ,\"stream\"\t:  false ,\n \"max_tokens\" : 1\r\n,\"kv_transfer_params\":$P}\n\n",
		"\r\n{\t\"messages\" :\n[ ] ,\"stream\"\t:  true ,\n \"max_tokens\" : 300\r\n,\"kv_transfer_params\":$H}\n\n", "",
	}, {
		"everything that goes is first", pd.APICompletions,
		`{"stream_options":{"include_usage":true}, "min_tokens":5, "stream":true, "prompt":"x", "max_tokens":9}`,
		`{  "stream":false, "prompt":"x", "max_tokens":1,"kv_transfer_params":$P}`,
		`{"stream_options":{"include_usage":true}, "min_tokens":5, "stream":true, "prompt":"x", "max_tokens":9,"kv_transfer_params":$H}`, "",
	}, {
		"everything that goes is last", pd.APICompletions,
		`{"max_tokens":9,"prompt":"x","stream":true , "min_tokens":5 , "stream_options":{} }`,
		`{"max_tokens":1,"prompt":"x","stream":false   ,"kv_transfer_params":$P}`,
		`{"max_tokens":9,"prompt":"x","stream":true , "min_tokens":5 , "stream_options":{} ,"kv_transfer_params":$H}`, "",
	}, {
		"nothing but what goes", pd.APIChat,
		`{"min_tokens":5,"stream_options":{},"max_completion_tokens":7}`,
		`{"max_completion_tokens":1,"kv_transfer_params":$P}`,
		`{"min_tokens":5,"stream_options":{},"max_completion_tokens":7,"kv_transfer_params":$H}`, "",
	}, {
		"the client's params, their name spelled by an escape", pd.APICompletions,
		`{"prompt":"x","kv\u005ftransfer_params":{"do_remote_prefill":true},"max_tokens":2}`,
		`{"prompt":"x","kv\u005ftransfer_params":$P,"max_tokens":1}`,
		`{"prompt":"x","kv\u005ftransfer_params":$H,"max_tokens":2}`,
		`{"prompt":"x","max_tokens":2}`,
	}, {
		"the controlled names spelled by escapes", pd.APIChat,
		`{"\u0073tream":true,"max\u005Ftokens":7,"m\u0069n_tokens":3,"messages":[]}`,
		`{"\u0073tream":false,"max\u005Ftokens":1,"messages":[],"kv_transfer_params":$P}`,
		`{"\u0073tream":true,"max\u005Ftokens":7,"m\u0069n_tokens":3,"messages":[],"kv_transfer_params":$H}`, "",
	}, {
		"names in other case are others", pd.APICompletions,
		`{"Stream":true,"MAX_TOKENS":7,"KV_transfer_params":{},"prompt":"x"}`,
		`{"Stream":true,"MAX_TOKENS":7,"KV_transfer_params":{},"prompt":"x","max_tokens":1,"kv_transfer_params":$P}`,
		`{"Stream":true,"MAX_TOKENS":7,"KV_transfer_params":{},"prompt":"x","kv_transfer_params":$H}`, "",
	}, {
		"numbers that a decoder would round", pd.APICompletions,
		`{"seed":12345678901234567890123,"temperature":0.10,"top_p":1E0,"prompt":[1,2],"x":-0}`,
		`{"seed":12345678901234567890123,"temperature":0.10,"top_p":1E0,"prompt":[1,2],"x":-0,"max_tokens":1,"kv_transfer_params":$P}`,
		`{"seed":12345678901234567890123,"temperature":0.10,"top_p":1E0,"prompt":[1,2],"x":-0,"kv_transfer_params":$H}`, "",
	}, {
		"members that no leg changes, twice", pd.APICompletions,
		`{"user":"a","prompt":"x","user":"b","max_tokens":3,"user":"c"}`,
		`{"user":"a","prompt":"x","user":"b","max_tokens":1,"user":"c","kv_transfer_params":$P}`,
		`{"user":"a","prompt":"x","user":"b","max_tokens":3,"user":"c","kv_transfer_params":$H}`, "",
	}, {
		"text that a decoder would change", pd.APIChat,
		`{"messages":[{"content":"\ud800 \u00e9 é 你 \/ 😀"}],"max_tokens":3}`,
		`{"messages":[{"content":"\ud800 \u00e9 é 你 \/ 😀"}],"max_tokens":1,"kv_transfer_params":$P}`,
		`{"messages":[{"content":"\ud800 \u00e9 é 你 \/ 😀"}],"max_tokens":3,"kv_transfer_params":$H}`, "",
	}, {
		"text that looks like members", pd.APICompletions,
		`{"prompt":"\"kv_transfer_params\":{},\"stream\":true}","max_tokens":3}`,
		`{"prompt":"\"kv_transfer_params\":{},\"stream\":true}","max_tokens":1,"kv_transfer_params":$P}`,
		`{"prompt":"\"kv_transfer_params\":{},\"stream\":true}","max_tokens":3,"kv_transfer_params":$H}`, "",
	}, {
		"controlled names at another depth", pd.APICompletions,
		`{"prompt":"x","metadata":{"stream":true,"max_tokens":3,"kv_transfer_params":1},"max_tokens":3}`,
		`{"prompt":"x","metadata":{"stream":true,"max_tokens":3,"kv_transfer_params":1},"max_tokens":1,"kv_transfer_params":$P}`,
		`{"prompt":"x","metadata":{"stream":true,"max_tokens":3,"kv_transfer_params":1},"max_tokens":3,"kv_transfer_params":$H}`, "",
	}, {
		"the client's params by every way at once", pd.APICompletions,
		`{"kv_transfer_params":[1],"vllm_xargs":{"a":1,"kv_transfer_params":2},"sampling_params":{"extra_args":{"kv_transfer_params":{},"b":2}},"prompt":"x","max_tokens":3}`,
		`{"kv_transfer_params":$P,"vllm_xargs":{"a":1},"sampling_params":{"extra_args":{"b":2}},"prompt":"x","max_tokens":1}`,
		`{"kv_transfer_params":$H,"vllm_xargs":{"a":1},"sampling_params":{"extra_args":{"b":2}},"prompt":"x","max_tokens":3}`,
		`{"vllm_xargs":{"a":1},"sampling_params":{"extra_args":{"b":2}},"prompt":"x","max_tokens":3}`,
	}, {
		"the client's params several times below the top", pd.APICompletions,
		`{"vllm_xargs":{"kv_transfer_params":1,"kv\u005ftransfer_params":2,"a":1,"kv_transfer_params":3},"prompt":"x","max_tokens":3}`,
		`{"vllm_xargs":{"a":1},"prompt":"x","max_tokens":1,"kv_transfer_params":$P}`,
		`{"vllm_xargs":{"a":1},"prompt":"x","max_tokens":3,"kv_transfer_params":$H}`,
		`{"vllm_xargs":{"a":1},"prompt":"x","max_tokens":3}`,
	}, {
		"the client's params in an object that a second one hides", pd.APICompletions,
		`{"vllm_xargs":{"kv_transfer_params":1},"prompt":"x","vllm_xargs":{"a":1},"max_tokens":3}`,
		`{"vllm_xargs":{},"prompt":"x","vllm_xargs":{"a":1},"max_tokens":1,"kv_transfer_params":$P}`,
		`{"vllm_xargs":{},"prompt":"x","vllm_xargs":{"a":1},"max_tokens":3,"kv_transfer_params":$H}`,
		`{"vllm_xargs":{},"prompt":"x","vllm_xargs":{"a":1},"max_tokens":3}`,
	},
}

var fill = strings.NewReplacer("$P", priming, "$H", handoff)

func TestLegsByteByByte(t *testing.T) {
	for _, c := range odd {
		t.Run(c.name, func(t *testing.T) {
			want := legs{fill.Replace(c.prefill), fill.Replace(c.decode), fill.Replace(c.local)}
			if c.local == "" {
				want.local = c.in
			}
			got := allLegs(t, asked(t, c.api, c.in))
			for _, leg := range []struct{ name, got, want string }{
				{"prefill", got.prefill, want.prefill}, {"decode", got.decode, want.decode}, {"local", got.local, want.local},
			} {
				if leg.got != leg.want {
					t.Errorf("%s:\n got %s\nwant %s", leg.name, leg.got, leg.want)
				}
				if !json.Valid([]byte(leg.got)) {
					t.Errorf("%s is not valid JSON: %s", leg.name, leg.got)
				}
			}
		})
	}
}

// A body arrives in pieces of any size, cut anywhere.
func TestLegsDoNotDependOnSegments(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range odd {
		in := []byte(c.in)
		want := allLegs(t, asked(t, c.api, c.in))
		check := func(cuts ...int) {
			var segments [][]byte
			at := 0
			for _, cut := range append(cuts, len(in)) {
				segments = append(segments, in[at:cut])
				at = cut
			}
			req, _, err := scan(c.api, segments...)
			if err != nil {
				t.Fatalf("%s, cut at %v: %v", c.name, cuts, err)
			}
			if got := allLegs(t, req); got != want {
				t.Fatalf("%s, cut at %v:\n got %+v\nwant %+v", c.name, cuts, got, want)
			}
		}
		every := make([]int, len(in))
		for i := range in {
			every[i] = i
			check(i)
		}
		check(every...)
		for range 50 {
			cuts := []int{r.IntN(len(in)), r.IntN(len(in)), r.IntN(len(in))}
			slices.Sort(cuts)
			check(cuts...)
		}
	}
}

// choices are what a body may have of each member that a leg touches; "" is a member that is absent.
var choices = []struct {
	name   string
	values []string
}{
	{"max_tokens", []string{"", "300", "null"}},
	{"max_completion_tokens", []string{"", "200", "null"}},
	{"min_tokens", []string{"", "5"}},
	{"stream", []string{"", "true", "false", "null"}},
	{"stream_options", []string{"", `{"include_usage":true}`}},
	{"kv_transfer_params", []string{"", "null", "true", "false", "7", `"x"`, "[]", `{}`, `{"do_remote_prefill":true}`}},
	{"sampling_params", []string{"", `{"extra_args":{"kv_transfer_params":{"a":[1]},"b":2}}`}},
	{"vllm_xargs", []string{"", `{"b":1,"kv_transfer_params":"x"}`}},
}

// stripped is what remains of the values above that hide the client's params.
var stripped = strings.NewReplacer(`"kv_transfer_params":{"a":[1]},`, "", `,"kv_transfer_params":"x"`, "")

// expected says what a prefill leg is, member by member: the documented touch list, written down a second time.
func expected(api pd.API, in []member) []member {
	out := without(in, "stream_options", "min_tokens")
	if slices.Contains(in, member{"stream", "true"}) {
		out = with(out, "stream", "false")
	}
	if has(in, "max_completion_tokens") {
		out = with(out, "max_completion_tokens", "1")
	}
	if has(in, "max_tokens") || api == pd.APICompletions || !has(in, "max_completion_tokens") {
		out = with(out, "max_tokens", "1")
	}
	return with(out, "kv_transfer_params", priming)
}

// TestLegsChangeOnlyListedMembers goes through every combination of choices: what is not on the touch list stays, in its order
// and to the byte.
func TestLegsChangeOnlyListedMembers(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	total := 1
	for _, c := range choices {
		total *= len(c.values)
	}
	for _, api := range []pd.API{pd.APIChat, pd.APICompletions} {
		for n := range total {
			in := []member{{"model", `"m"`}, {"messages", `[ {"content" : "\u00e9" } ]`}, {"prompt", `"x"`}, {"seed", "12345678901234567890123"}, {"x", `{"a" : 1.0}`}}
			for rest, i := n, 0; i < len(choices); i++ {
				c := choices[i]
				if v := c.values[rest%len(c.values)]; v != "" {
					in = append(in, member{c.name, v})
				}
				rest /= len(c.values)
			}
			r.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
			checkTouched(t, api, in)
		}
	}
}

func checkTouched(t *testing.T, api pd.API, in []member) {
	t.Helper()
	parts := make([]string, len(in))
	for i, m := range in {
		parts[i] = fmt.Sprintf("%q : %s", m.name, m.value)
	}
	text := "{ " + strings.Join(parts, " , ") + " }"
	got := allLegs(t, asked(t, api, text))
	clean := make([]member, len(in))
	for i, m := range in {
		clean[i] = member{m.name, stripped.Replace(m.value)}
	}
	for _, leg := range []struct {
		name, got string
		want      []member
	}{
		{"prefill", got.prefill, expected(api, clean)},
		{"decode", got.decode, with(clean, "kv_transfer_params", handoff)},
		{"local", got.local, without(clean, "kv_transfer_params")},
	} {
		if have := members(t, leg.got); !slices.Equal(have, leg.want) {
			t.Fatalf("%s of %s %s:\n got %v\nwant %v", leg.name, api, text, have, leg.want)
		}
	}
	if clean := !strings.Contains(text, "kv_transfer_params"); clean && got.local != text {
		t.Fatalf("the local leg of a clean body changed:\n got %s\nwant %s", got.local, text)
	}
}

// What an engine reads out of a leg, and not only how it is spelled.
func TestLegsMean(t *testing.T) {
	got := allLegs(t, asked(t, pd.APIChat, `{"messages":[],"stream":true,"stream_options":{},"max_tokens":300,"min_tokens":7,"n":1}`))
	var p struct {
		Stream        *bool          `json:"stream"`
		StreamOptions any            `json:"stream_options"`
		MaxTokens     int            `json:"max_tokens"`
		MinTokens     *int           `json:"min_tokens"`
		Params        map[string]any `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(got.prefill), &p); err != nil {
		t.Fatal(err)
	}
	if *p.Stream || p.StreamOptions != nil || p.MaxTokens != 1 || p.MinTokens != nil || p.Params["do_remote_decode"] != true || p.Params["do_remote_prefill"] != false {
		t.Errorf("prefill reads %+v", p)
	}
	if err := json.Unmarshal([]byte(got.decode), &p); err != nil {
		t.Fatal(err)
	}
	if !*p.Stream || p.StreamOptions == nil || p.MaxTokens != 300 || *p.MinTokens != 7 || p.Params["do_remote_prefill"] != true || p.Params["remote_port"] != 5601. {
		t.Errorf("decode reads %+v", p)
	}
}

// Legs are made of the request's own bytes: a body of megabytes is not copied.
func TestLegsShareTheBody(t *testing.T) {
	in := []byte(`{"prompt":"` + strings.Repeat("x", 1<<10) + `","max_tokens":3}`)
	r, _, err := scan(pd.APICompletions, in)
	if err != nil {
		t.Fatal(err)
	}
	l, err := attempt(t, nixl(t), r).Prefill()
	if err != nil {
		t.Fatal(err)
	}
	if &l.Segments[0][0] != &in[0] || len(l.Segments[0]) < 1<<10 {
		t.Errorf("the first of %d segments is a copy", len(l.Segments))
	}
}

func TestLegsRefuseBodiesOtherThanObjects(t *testing.T) {
	for _, in := range []string{`[]`, `"x"`, `null`, `7`, `[{"kv_transfer_params":{}}]`} {
		r := asked(t, pd.APIChat, in)
		if _, err := attempt(t, nixl(t), r).Prefill(); err == nil {
			t.Errorf("%s has a prefill leg", in)
		}
		if _, err := handedOff(t, r).Decode(); err == nil {
			t.Errorf("%s has a decode leg", in)
		}
		// The engine says best itself what it thinks of it.
		l, err := r.Local()
		if got := text(t, l, err); got != in {
			t.Errorf("%s: the local leg is %s", in, got)
		}
	}
}

// FuzzLegs: legs of valid JSON are valid JSON, and whatever the body, no engine sees params of the client's.
func FuzzLegs(f *testing.F) {
	for i, c := range odd {
		f.Add([]byte(c.in), uint16(i*7), c.api == pd.APIChat)
	}
	f.Add([]byte("\xEF\xBB\xBF"+`{"kv_transfer_params":NaN,"prompt":Infinity}`), uint16(2), false)
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, chat bool) {
		api := pd.APICompletions
		if chat {
			api = pd.APIChat
		}
		k := int(cut) % (len(in) + 1)
		r, s, err := scan(api, in[:k], in[k:])
		if err != nil || s.Root().Kind != body.Object {
			return
		}
		touched := slices.ContainsFunc(s.Members(), func(m body.Member) bool { return request.Base.Strips(m.Want) })
		got := allLegs(t, r)
		checkFuzzed(t, string(in), got.prefill, priming)
		checkFuzzed(t, string(in), got.decode, handoff)
		checkFuzzed(t, string(in), got.local, "")
		if !touched && got.local != string(in) {
			t.Fatalf("%q: nothing to strip, and the local leg is %q", in, got.local)
		}
	})
}

// checkFuzzed checks one leg of in, in which only params may stand for the engine, at top level. A leg of invalid JSON
// may be valid: what made it so (a NaN, which Python takes) can go with a member.
func checkFuzzed(t *testing.T, in, leg, params string) {
	t.Helper()
	if json.Valid([]byte(in)) && !json.Valid([]byte(leg)) {
		t.Fatalf("%q became %q", in, leg)
	}
	_, s, err := scan(pd.APIChat, []byte(leg))
	if errors.Is(err, body.ErrEncoding) && !json.Valid([]byte(in)) {
		return // a removal moved a bare NUL to where it looks like UTF-16
	}
	if err != nil {
		t.Fatalf("%q became %q: %v", in, leg, err)
	}
	found := ""
	for _, m := range s.Members() {
		if !request.Base.Strips(m.Want) {
			continue
		}
		if found += leg[m.Value.Start:m.Value.End]; request.Base.Members().Path(m.Want) != "kv_transfer_params" {
			t.Fatalf("%q became %q", in, leg)
		}
	}
	if found != params {
		t.Fatalf("%q became %q, with params %q", in, leg, found)
	}
}

// BenchmarkLegs is what a remote request pays for its two bodies, the scan not counted.
func BenchmarkLegs(b *testing.B) {
	for _, size := range []int{1 << 10, 220 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			in := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("It was the best of times. ", size/26) +
				`"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":300,"min_tokens":5,"temperature":0.7}`)
			var segments [][]byte
			for at := 0; at < len(in); at += 16 << 10 {
				segments = append(segments, in[at:min(at+16<<10, len(in))])
			}
			r, _, err := scan(pd.APIChat, segments...)
			if err != nil {
				b.Fatal(err)
			}
			a, h := attempt(b, nixl(b), r), handedOff(b, r)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Prefill(); err != nil {
					b.Fatal(err)
				}
				if _, err := h.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
