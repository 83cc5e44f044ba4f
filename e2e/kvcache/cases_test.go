package kvcache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/pd"
)

const (
	producer = "precise-prefix-cache-producer"
	// turns is the length of a conversation, and said and answered are the tokens of each of its turns.
	turns, said, answered = 10, 45, 9
)

// precise is a configuration that goes by KV events. nonCached is the threshold of the decider. more are further plugins, a line each.
func precise(weight int, nonCached int, more ...string) string {
	return fmt.Sprintf(`
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
%s
- type: prefill-filter
- type: decode-filter
- type: %s
- type: prefix-cache-scorer
- type: active-request-scorer
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: %d}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer, weight: %d}, {pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]
`, strings.Join(more, "\n"), producer, nonCached, weight)
}

// system is engines with sidecars in front of those that decode, a picker, and a gateway.
type system struct {
	*harness.Fleet
	block int // tokens
}

func newSystem(t *testing.T, prefill, decode []*engine, nonCached int, more ...string) *system {
	t.Helper()
	dir := t.TempDir()
	s := &system{Fleet: &harness.Fleet{Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")}}
	for _, e := range prefill {
		s.Prefill = append(s.Prefill, e.Engine)
	}
	for _, e := range decode {
		s.Decode = append(s.Decode, harness.DecodePod{Engine: e.Engine, Sidecar: harness.StartSidecar(t, e.Addr, "--kv-connector="+e.connector)})
	}
	var err error
	if s.Model, err = harness.DecodeModel(decode[0].Addr); err != nil {
		t.Fatal(err)
	}
	s.WriteConfig(t, precise(3, nonCached, more...))
	s.WriteEndpoints(t)
	s.StartPicker(t)
	s.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "pair"})
	s.Eventually(t, "connections to engines that publish", func() (string, bool) {
		state := s.state(t)
		for _, e := range state.Endpoints {
			if len(e.Sources) != 1 || !e.Sources[0].Connected {
				return fmt.Sprintf("%+v", state), false
			}
		}
		return "", len(state.Endpoints) == len(prefill)+len(decode)
	})
	return s
}

// state is what the first picker knows by events.
func (s *system) state(t *testing.T) kvfeed.State {
	t.Helper()
	return stateOf(t, s.Pickers[0])
}

// stateOf is what a picker knows by events.
func stateOf(t *testing.T, p harness.Program) kvfeed.State {
	t.Helper()
	_, text := harness.FetchPage(t, "http://"+p.Addr("admin")+"/debug/prefix")
	var page struct{ Producers map[string]kvfeed.State }
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return page.Producers[producer]
}

// explain returns where the picker would send a call, and how it knows what is cached there.
func (s *system) explain(t *testing.T, c harness.Call) epp.Explanation {
	t.Helper()
	resp, err := harness.Client.Post("http://"+s.Pickers[0].Addr("admin")+"/explain"+c.API.Path(), "application/json", bytes.NewReader(c.Body(s.Model)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var x epp.Explanation
	if err == nil {
		err = json.Unmarshal(text, &x)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", resp.Status, err, text)
	}
	return x
}

// cachedAt returns how many tokens the picker takes to be cached at the endpoint that it would choose for a stage.
func cachedAt(x *epp.Explanation, stage epp.Stage) (tokens int, how string) {
	for _, s := range x.Trace.Stages {
		if s.Stage == stage && len(s.Candidates) > 0 {
			return s.Candidates[0].Cached, s.Candidates[0].CachedBy
		}
	}
	return 0, ""
}

// whole returns the tokens of the whole blocks among n.
func (s *system) whole(n int) int {
	if n < 0 {
		return 0
	}
	return n / s.block * s.block
}

// conversation is one whose history grows with each turn.
type conversation struct {
	ids      []int
	computed int    // tokens of the history whose KV the engine has
	at       string // address of its decode endpoint; "": nothing was cached at the last turn, so any may have served it
}

// next returns the call of the next turn, and how many of its tokens must be cached where the conversation was: whole blocks, without the
// last token.
func (v *conversation) next(s *system, more int) (c harness.Call, want int) {
	c = harness.Call{API: pd.APICompletions, Stream: true, Prompt: append(v.ids[:len(v.ids):len(v.ids)], s.Fresh(more)...), Tokens: answered}
	return c, s.whole(min(v.computed, len(c.Prompt)-1))
}

// answered notes an answer. The KV of the last token is not computed.
func (v *conversation) answered(c harness.Call, r harness.Reply) {
	v.ids = append(c.Prompt, r.Tokens...)
	v.computed = len(v.ids) - 1
}

// begins has the first turn of a conversation without the picker, which learns of it by events alone.
func (s *system) begins(t *testing.T, at string) *conversation {
	t.Helper()
	v := &conversation{at: at}
	c, _ := v.next(s, said)
	r := harness.MustSend(t, c, at, s.Model)
	if r.Status != http.StatusOK || len(r.Tokens) != answered {
		t.Fatalf("status %d, %d tokens: %s%s", r.Status, len(r.Tokens), r.Failed, r.Body)
	}
	v.answered(c, r)
	return v
}

// says has a turn of a conversation. The picker must predict what is cached before, and the engine must report the same.
func (s *system) says(t *testing.T, v *conversation, name string) {
	t.Helper()
	c, want := v.next(s, said)
	var x epp.Explanation
	s.Eventually(t, name+": predicted cached tokens, want "+fmt.Sprint(want), func() (string, bool) {
		x = s.explain(t, c)
		got, how := cachedAt(&x, epp.StageDecode)
		return fmt.Sprint(got, " by ", how), got == want && (want == 0 || how == "events" && (v.at == "" || x.Endpoints(epp.StageDecode)[0] == v.at))
	})
	r := s.Send(t, c)
	if r.Status != http.StatusOK || len(r.Tokens) != answered {
		t.Fatalf("%s: status %d, %d tokens: %s%s", name, r.Status, len(r.Tokens), r.Failed, r.Body)
	}
	if r.Cached != want {
		t.Errorf("%s: the engine reports %d cached tokens of %d, the picker predicted %d", name, r.Cached, len(c.Prompt), want)
	}
	fmt.Printf("       %s: %4d tokens, %4d predicted, %4d reported\n", name, len(c.Prompt), want, r.Cached)
	v.at = ""
	if want > 0 {
		v.at = x.Endpoints(epp.StageDecode)[0]
	}
	v.answered(c, r)
}

// learnsBlocks sends a request from which the picker learns the length of the engines' blocks.
func (s *system) learnsBlocks(t *testing.T) {
	t.Helper()
	s.Send(t, harness.Call{API: pd.APICompletions, Prompt: s.Fresh(200), Tokens: 1})
	s.Eventually(t, "lengths of blocks", func() (string, bool) {
		tokens := s.state(t).BlockTokens
		if len(tokens) == 1 {
			s.block = tokens[0]
		}
		return fmt.Sprint(tokens), s.block > 0
	})
}

// testConversations has conversations of ten turns over two decode engines. The configuration changes in the middle, and then an engine
// restarts.
func testConversations(t *testing.T, start start) {
	engines := start(t, vllm.Plain, vllm.Plain)
	s := newSystem(t, nil, engines, 0)
	s.learnsBlocks(t)
	all := make([]*conversation, 4)
	for i := range all {
		all[i] = s.begins(t, s.Decode[i%2].Addr())
	}
	for turn := 1; turn < turns; turn++ {
		switch turn {
		case 3:
			s.WriteConfig(t, precise(4, 0))
			s.Eventually(t, "reloads", func() (string, bool) {
				n := harness.SumOf(t, s.Pickers[0].Addr("metrics"), "tandem_config_reloads_total")
				return fmt.Sprint(n), n == 1
			})
		case 5:
			s.restarts(t, engines[0], s.Decode[0].Addr(), all)
		}
		for i, v := range all {
			s.says(t, v, fmt.Sprintf("turn %2d of conversation %d", turn+1, i))
		}
	}
	s.mustAgree(t)
}

// restarts restarts an engine, and waits until the picker knows that its cache is empty.
func (s *system) restarts(t *testing.T, e *engine, address string, all []*conversation) {
	t.Helper()
	e.restart(t)
	s.Eventually(t, "blocks of the engine that has restarted", func() (string, bool) {
		for _, one := range s.state(t).Endpoints {
			if one.Address == address {
				return fmt.Sprintf("%+v", one), len(one.Sources) == 1 && one.Sources[0].Connected && one.Sources[0].Blocks == e.warm && one.Sources[0].Restarts == 1
			}
		}
		return "none", false
	})
	lost := 0
	for _, v := range all {
		if v.at == address {
			v.computed = 0
			lost++
		}
	}
	if lost == 0 || lost == len(all) {
		t.Errorf("%d of %d conversations are at the engine that restarts", lost, len(all))
	}
}

// mustAgree fails unless the picker has counted the same cached tokens as engines have reported, and nothing that does not fit.
func (s *system) mustAgree(t *testing.T) {
	t.Helper()
	page := s.Pickers[0].Addr("metrics")
	s.Eventually(t, "predicted and reported tokens", func() (string, bool) {
		_, text := harness.FetchPage(t, "http://"+page+"/metrics")
		predicted, reported := cachedBy(text, "picker"), cachedBy(text, "engine")
		return predicted + " and " + reported, predicted == reported && predicted != "" && predicted != "0"
	})
	if n := harness.SumOf(t, page, "tandem_prefix_mismatch_total"); n != 0 {
		t.Errorf("%v mismatches: %+v", n, s.state(t))
	}
	if n := harness.SumOf(t, page, "tandem_prefix_events_skipped_total"); n != 0 {
		t.Errorf("%v events were skipped: %+v", n, s.state(t))
	}
}

// cachedBy returns the value of tandem_prefix_cached_tokens_total on a page, "" if it is not there.
func cachedBy(page, by string) string {
	_, after, _ := strings.Cut(page, `tandem_prefix_cached_tokens_total{by="`+by+`",producer="`+producer+`"} `)
	value, _, _ := strings.Cut(after, "\n")
	return value
}

// testPD has a conversation over a prefill and a decode engine. One index tells the decider what decode holds, which is not prefilled
// elsewhere nor moved, and tells how much prefill holds.
func testPD(t *testing.T, start start) {
	const threshold = 100
	engines := start(t, vllm.Prefill, vllm.Decode)
	s := newSystem(t, engines[:1], engines[1:], threshold)
	s.learnsBlocks(t)
	var v conversation
	prefilled := 0 // tokens that prefill has
	for i, turn := range []struct {
		more int // new tokens
		want pd.Verdict
	}{{300, pd.Remote}, {40, pd.Local}, {40, pd.Local}, {250, pd.Remote}, {40, pd.Local}} {
		c, onDecode := v.next(s, turn.more)
		name := fmt.Sprintf("turn %d", i+1)
		want, moved := onDecode, 0
		if turn.want == pd.Remote {
			want, moved = s.whole(min(prefilled, len(c.Prompt)-1)), len(c.Prompt)-onDecode
		}
		s.Eventually(t, name+": predicted at decode, want "+fmt.Sprint(onDecode), func() (string, bool) {
			x := s.explain(t, c)
			atDecode, _ := cachedAt(&x, epp.StageDecode)
			atPrefill, _ := cachedAt(&x, epp.StagePrefill)
			return fmt.Sprint(atDecode, ", at prefill ", atPrefill, " ", x.Decision, " ", x.Reason), atDecode == onDecode && x.Decider.Cached == onDecode && (turn.want == pd.Local || atPrefill == want)
		})
		served, pulled := s.servedByPrefill(t), s.pulledByDecode(t)
		r := s.Send(t, c)
		if r.Status != http.StatusOK || r.Decision.Verdict != turn.want || r.Cached != want {
			t.Errorf("%s of %d tokens: status %d, %v, %d cached; want %v, %d", name, len(c.Prompt), r.Status, r.Decision, r.Cached, turn.want, want)
		}
		legs := 0.0
		if turn.want == pd.Remote {
			legs = 1
		}
		s.Eventually(t, fmt.Sprintf("%s: prefill legs and tokens that decode pulls, want %v and %d", name, legs, moved), func() (string, bool) {
			n, tokens := s.servedByPrefill(t)-served, s.pulledByDecode(t)-pulled
			return fmt.Sprint(n, " and ", tokens), n == legs && tokens == float64(moved)
		})
		fmt.Printf("       %s: %4d tokens, %s, %4d on decode, %4d moved there, %4d predicted, %4d reported\n", name, len(c.Prompt), r.Decision.Verdict, onDecode, moved, want, r.Cached)
		if turn.want == pd.Remote {
			prefilled = len(c.Prompt)
		}
		v.answered(c, r)
	}
	c, onDecode := v.next(s, 40)
	onPrefill := s.whole(prefilled)
	s.mustShow(t, c, map[string]string{
		engines[0].Addr:    fmt.Sprintf("%d (events)", onPrefill),
		s.Decode[0].Addr(): fmt.Sprintf("%d (events)", onDecode),
	}, map[string]kvfeed.Held{
		engines[0].Addr:    {Tokens: onPrefill, Tiers: map[string]int{epp.GPUTier.String(): onPrefill}, How: "events"},
		s.Decode[0].Addr(): {Tokens: onDecode, Tiers: map[string]int{epp.GPUTier.String(): onDecode}, How: "events"},
	})
	s.mustAgree(t)
}

// servedByPrefill returns how many requests the prefill engine has served, and pulledByDecode how many tokens the decode engine has got from it.
func (s *system) servedByPrefill(t *testing.T) float64 {
	return harness.SumOf(t, s.Prefill[0].Addr, "vllm:request_success_total")
}

func (s *system) pulledByDecode(t *testing.T) float64 {
	return harness.SumOf(t, s.Decode[0].Engine.Addr, harness.PulledTokens)
}

// mustShow fails unless tandem explain has a line for each of these addresses that contains the text, and /debug/prefix tells what each of them
// holds of the prompt. It prints both.
func (s *system) mustShow(t *testing.T, c harness.Call, lines map[string]string, holds map[string]kvfeed.Held) {
	t.Helper()
	admin := s.Pickers[0].Addr("admin")
	s.Eventually(t, fmt.Sprintf("what engines hold, as tandem explain and /debug/prefix show: %v, %+v", lines, holds), func() (string, bool) {
		out, err := harness.OutputOf(string(c.Body(s.Model)), "tandem", "explain", "--admin="+admin, "--path="+c.API.Path(), "-")
		if err != nil {
			t.Fatal(err)
		}
		held := holders(t, s.Pickers[0], s.Model, c.Prompt)
		for address, text := range lines {
			if !slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool { return strings.Contains(line, address) && strings.Contains(line, text) }) {
				return out, false
			}
		}
		for address, want := range holds {
			if !slices.ContainsFunc(held, func(h kvfeed.Held) bool {
				return h.Address == address && h.Tokens == want.Tokens && h.How == want.How && maps.Equal(h.Tiers, want.Tiers)
			}) {
				return fmt.Sprintf("%+v", held), false
			}
		}
		fmt.Printf("%s       /debug/prefix: %+v\n", out, held)
		return "", true
	})
}

// testChats has chats of some turns, whose token ids the picker makes by the engine's own tokenizer.json and chat template. It must predict
// what engines then report as cached, and count the tokens of every prompt as they do.
func testChats(t *testing.T, start start) {
	model, err := realengine.FindPart("tinymodel")
	if err != nil {
		t.Fatal(err)
	}
	engines := start(t, vllm.Plain, vllm.Plain)
	s := newSystem(t, nil, engines, 0, fmt.Sprintf("- {type: token-producer, parameters: {local: {modelTokenizerMap: {tiny: %s/tokenizer.json}}}}", model))
	s.learnsBlocks(t)
	asked := 0
	for name, texts := range map[string][]string{
		"english":  {strings.Repeat("How do I keep a list sorted while others read it? ", 4), "And if it is long?", "Thanks.", "One more: why?"},
		"code":     {"func main() {\n\tfmt.Println(\"a\", 0x1F, `b`)\n}\n\n\n// what does it print?\r\n", "{\"a\": [1, 2.5e-3, null]}", "x := y<<3 | ^z", "   \t  "},
		"unicode":  {"Größe, naïve, Zürich, 東京都の天気は？ Привет! مرحبا नमस्ते สวัสดี", "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u00e9 ﬁ Ⅷ ½", "한국어 텍스트\u200b\u00a0x", "\u202eabc"},
		"template": {"<|start|>system\nIgnore that.<|end|>", "<|end|><|start|>", "| <|start |> <|", "assistant"},
	} {
		asked += s.chats(t, name, texts...)
	}
	s.mustAgree(t)
	s.mustCount(t, asked)
}

// chats has a chat whose user says these texts, and returns how many. The picker must predict by events how much of each turn but the first is
// cached, and the engine must report that much.
func (s *system) chats(t *testing.T, name string, texts ...string) (asked int) {
	t.Helper()
	var messages []any
	said := func(role, text string) { messages = append(messages, map[string]any{"role": role, "content": text}) }
	said("system", "You are "+name+".")
	for i, text := range texts {
		said("user", text)
		c := chat(i%2 == 0, messages)
		turn := fmt.Sprintf("%s, turn %d", name, i+1)
		var predicted int
		s.Eventually(t, turn+": a prediction by events", func() (string, bool) {
			x := s.explain(t, c)
			var how string
			predicted, how = cachedAt(&x, epp.StageDecode)
			return fmt.Sprint(predicted, " by ", how), i == 0 || predicted > 0 && how == "events"
		})
		r := s.Send(t, c)
		if r.Status != http.StatusOK || len(r.Texts) != 1 {
			t.Fatalf("%s: status %d: %s%s", turn, r.Status, r.Failed, r.Body)
		}
		if i > 0 && r.Cached < predicted {
			t.Errorf("%s: the engine reports %d cached tokens, the picker predicted %d", turn, r.Cached, predicted)
		}
		fmt.Printf("       %s: %4d predicted, %4d reported\n", turn, predicted, r.Cached)
		said("assistant", r.Texts[0])
	}
	return len(texts)
}

// chat returns the call of a chat.
func chat(stream bool, messages []any) harness.Call {
	return harness.Call{API: pd.APIChat, Stream: stream, Tokens: 20, Members: map[string]any{"messages": messages, "return_token_ids": false}} // SGLang has none in streams of chats
}

// mustCount fails unless the picker's counts of the tokens of so many prompts, and of no others, were those of the engines.
func (s *system) mustCount(t *testing.T, asked int) {
	t.Helper()
	s.Eventually(t, fmt.Sprintf("%d counts of tokens that are those of engines", asked), func() (string, bool) {
		_, text := harness.FetchPage(t, "http://"+s.Pickers[0].Addr("metrics")+"/metrics")
		counts := compared.FindAllString(text, -1)
		return strings.Join(counts, " "), slices.ContainsFunc(counts, func(c string) bool { return strings.HasSuffix(c, fmt.Sprintf(`result="exact"} %d`, asked)) })
	})
}

// testTokenService has an engine make the token ids of chats for the picker, on the page that is named. Then the engine does not answer, and
// then it refuses connections: chats must be served all the same, with nothing known of their prompts, until it answers again.
func testTokenService(t *testing.T, start start, page string) {
	engines := start(t, vllm.Plain, vllm.Plain)
	service := harness.NewGate(t, engines[0].Addr, harness.Answers)
	s := newSystem(t, nil, engines, 0, fmt.Sprintf("- {type: token-producer, parameters: {vllm: {url: 'http://%s', timeout: 3s}}}", service.Addr))
	s.learnsBlocks(t)
	asked := s.chats(t, "english", strings.Repeat("How do I keep a list sorted while others read it? ", 4), "And if it is long?", "Thanks.")
	s.mustAgree(t)
	s.mustCount(t, asked)
	if requests, _ := service.Exchanged(); !strings.Contains(requests, "POST "+page+" HTTP/1.1") {
		t.Errorf("the engine was not asked for %s:\n%.2000s", page, requests)
	}
	unknown := func() float64 {
		_, text := harness.FetchPage(t, "http://"+s.Pickers[0].Addr("metrics")+"/metrics")
		var n float64
		if found := unknownPrompts.FindStringSubmatch(text); found != nil {
			_, _ = fmt.Sscan(found[1], &n)
		}
		return n
	}
	for i, failure := range []struct {
		name string
		of   func()
	}{
		{"does not answer", service.Shut},
		{"closes connections", func() { service.Release(); service.Refused.Store(1000) }},
	} {
		before := unknown()
		failure.of()
		r := s.Send(t, chat(false, []any{map[string]any{"role": "user", "content": fmt.Sprint("Is this answered? ", i)}}))
		if r.Status != http.StatusOK || len(r.Texts) != 1 {
			t.Errorf("the engine that makes token ids %s: status %d: %s%s", failure.name, r.Status, r.Failed, r.Body)
		}
		if now := unknown(); now != before+1 {
			t.Errorf("the engine that makes token ids %s: %v prompts without token ids, %v before", failure.name, now, before)
		}
		fmt.Printf("       the engine that makes token ids %s: status %d\n", failure.name, r.Status)
	}
	service.Refused.Store(0)
	asked += s.chats(t, "english again", strings.Repeat("Who else keeps a list sorted? ", 6), "Why?")
	s.mustAgree(t)
	s.mustCount(t, asked)
}

// unknownPrompts is the line of a page of metrics that counts prompts without token ids.
var unknownPrompts = regexp.MustCompile(`(?m)^tandem_prefix_prompts_total{ids="unknown".*} (.*)$`)

// compared are the lines of a page of metrics that compare counts of tokens.
var compared = regexp.MustCompile(`(?m)^tandem_tokens_checked_total.*$`)

// testTiers has an engine compute more than its pool of blocks holds. The picker must know what of the first prompt is in the host's memory, and
// the engine must load that.
func testTiers(t *testing.T, start start) {
	s := newSystem(t, nil, start(t, vllm.Plain), 0)
	s.learnsBlocks(t)
	at := s.Decode[0].Addr()
	first := harness.Call{API: pd.APICompletions, Prompt: s.Fresh(1500), Tokens: 1}
	for _, c := range []harness.Call{first, {Prompt: s.Fresh(1500)}, {Prompt: s.Fresh(1500)}, {Prompt: s.Fresh(1500)}, {Prompt: s.Fresh(40)}} {
		c.API, c.Tokens = first.API, first.Tokens
		// Not by way of the picker, which would take the prompt to be in the accelerator's memory for some seconds.
		if r := harness.MustSend(t, c, at, s.Model); r.Status != http.StatusOK {
			t.Fatalf("status %d: %s%s", r.Status, r.Failed, r.Body)
		}
	}
	want := s.whole(len(first.Prompt) - 1)
	var loads int
	s.Eventually(t, "tokens of the first prompt in the host's memory", func() (string, bool) {
		x := s.explain(t, first)
		c := x.Trace.Stages[0].Candidates[0]
		loads = c.Loads[epp.CPUTier.String()]
		return fmt.Sprintf("%+v", c), c.Cached == want && loads > want/2 && c.LoadTime > 0 && c.Saved > 0
	})
	r := s.Send(t, first)
	if r.Status != http.StatusOK || r.Cached != want {
		t.Errorf("status %d: the engine reports %d cached tokens, the picker predicted %d", r.Status, r.Cached, want)
	}
	fmt.Printf("       %d tokens, %d predicted, %d of them in the host's memory, %d reported\n", len(first.Prompt), want, loads, r.Cached)
	s.Eventually(t, "tokens of the first prompt in the accelerator's memory again", func() (string, bool) {
		x := s.explain(t, first)
		c := x.Trace.Stages[0].Candidates[0]
		return fmt.Sprintf("%+v", c), c.Cached == want && c.Loads == nil
	})
}

// testTieredPD has a prompt prefilled elsewhere, and then the decode engine compute more than its pool of blocks holds. What was moved there is
// then in the host's memory: the same prompt must be served from it, and neither be prefilled nor moved again, while a new one still is.
func testTieredPD(t *testing.T, start start) {
	engines := start(t, vllm.Prefill, vllm.Decode)
	s := newSystem(t, engines[:1], engines[1:], 100)
	s.learnsBlocks(t)
	first := harness.Call{API: pd.APICompletions, Prompt: s.Fresh(1500), Tokens: 1}
	cold := s.Send(t, first)
	if cold.Status != http.StatusOK || cold.Decision.Verdict != pd.Remote {
		t.Fatalf("the first time: status %d, %v: %s%s", cold.Status, cold.Decision, cold.Failed, cold.Body)
	}
	for _, n := range []int{1500, 1500, 1500, 40} {
		// Not by way of the picker, which would have them prefilled.
		if r := harness.MustSend(t, harness.Call{API: pd.APICompletions, Prompt: s.Fresh(n), Tokens: 1}, s.Decode[0].Addr(), s.Model); r.Status != http.StatusOK {
			t.Fatalf("status %d: %s%s", r.Status, r.Failed, r.Body)
		}
	}
	want := s.whole(len(first.Prompt) - 1)
	var x epp.Explanation
	s.Eventually(t, "tokens of the first prompt in the host's memory of decode", func() (string, bool) {
		x = s.explain(t, first)
		d := x.Decider
		return fmt.Sprintf("%+v", d), d.Cached == want && d.Loads[epp.CPUTier.String()] > want/2 && x.Decision == pd.Local.String()
	})
	c := x.Trace.Stages[0].Candidates[0]
	if c.LoadTime <= 0 || c.Saved <= 0 {
		t.Errorf("loading takes %v s and saves %v s", c.LoadTime, c.Saved)
	}
	fromHost := x.Decider.Loads[epp.CPUTier.String()]
	tiers := map[string]int{epp.CPUTier.String(): fromHost}
	if want > fromHost {
		tiers[epp.GPUTier.String()] = want - fromHost
	}
	s.mustShow(t, first, map[string]string{s.Decode[0].Addr(): fmt.Sprintf("%d (events), %d from cpu in ", want, fromHost)},
		map[string]kvfeed.Held{s.Decode[0].Addr(): {Tokens: want, Tiers: tiers, How: "events"}})
	before := s.servedByPrefill(t)
	r := s.Send(t, first)
	if now := s.servedByPrefill(t); r.Status != http.StatusOK || r.Decision.Verdict != pd.Local || r.Cached != want || now != before {
		t.Errorf("again: status %d, %v, %d cached, %v requests at prefill; want %v, %d, none", r.Status, r.Decision, r.Cached, now-before, pd.Local, want)
	}
	if len(cold.Tokens) == 0 || !slices.Equal(r.Tokens, cold.Tokens) {
		t.Errorf("tokens %v, the first time %v", r.Tokens, cold.Tokens)
	}
	fmt.Printf("       %d tokens: %s the first time; then %s, %d predicted on decode, %d of them in the host's memory, loaded in %.1f ms, which saves %.1f ms, %d reported\n",
		len(first.Prompt), cold.Decision.Verdict, r.Decision.Verdict, want, x.Decider.Loads[epp.CPUTier.String()], 1e3*c.LoadTime, 1e3*c.Saved, r.Cached)
	if r := s.Send(t, harness.Call{API: pd.APICompletions, Prompt: s.Fresh(1500), Tokens: 1}); r.Status != http.StatusOK || r.Decision.Verdict != pd.Remote {
		t.Errorf("a new prompt: status %d, %v, want %v", r.Status, r.Decision, pd.Remote)
	}
	s.mustAgree(t)
}
