package workload

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

const (
	burst = `Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a,2.5,ChatGPT,472,18,490,Conversation log
45,a,1,ChatGPT,1087,230,1317,Conversation log
46,,1,GPT-4,417,276,693,API log
`
	blis = `request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,streaming,input_tokens,output_tokens,text_tokens,` +
		`image_tokens,audio_tokens,video_tokens,reason_ratio,model,deadline_us,server_input_tokens,arrival_time_us,send_time_us,first_chunk_time_us,` +
		`last_chunk_time_us,num_chunks,status,error_message,finish_reason,adapter
0,c,t1,critical,s1,0,g,100,true,50,20,50,0,0,0,0,m,0,0,1000000,1000100,1100000,1500000,20,ok,,stop,
1,c,t1,critical,s1,1,g,100,true,70,20,70,0,0,0,0,m,0,180,4500000,4500100,4600000,4700000,20,ok,,stop,
2,c,t2,batch,,0,,0,true,300,9,300,0,0,0,0,m,0,333,2000000,2000100,2100000,2200000,9,ok,,stop,lora-1
`
	bench = `{"date": "20260101-000000", "backend": "vllm", "num_prompts": 3, "request_rate": "inf", "completed": 2, "input_lens": [100, 200, 300],` +
		`"output_lens": [10, 20, 0], "ttfts": [0.1, 0.2, 0], "itls": [[0.1], [0.2], []], "start_times": [71.5, 72, 73], "errors": ["", "", "refused"]}
`
)

func callsOf(t *testing.T, given string, sessions bool) ([]Call, *Trace) {
	t.Helper()
	trace, err := ReadTrace(strings.NewReader(given), func(error) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	trace.Sessions = sessions
	all := trace.Calls(nil, Bound{Requests: 100, Span: time.Hour})
	for i := range all {
		all[i].session = 0
	}
	return all, trace
}

func TestFormats(t *testing.T) {
	for _, test := range []struct {
		name, given string
		sessions    bool
		want        []Call
	}{
		{"BurstGPT, when requests came", burst, false, []Call{
			{Input: 472, Output: 18, BlockTokens: 1},
			{Due: 40 * time.Second, Input: 1087, Output: 230, BlockTokens: 1},
			{Due: 41 * time.Second, Input: 417, Output: 276, BlockTokens: 1, Class: 1}}},
		{"BurstGPT, by sessions", burst, true, []Call{
			{Input: 472, Output: 18, BlockTokens: 1},
			{Due: 40 * time.Second, Input: 1087, Output: 230, BlockTokens: 1, After: 1, Think: 37500 * time.Millisecond},
			{Due: 41 * time.Second, Input: 417, Output: 276, BlockTokens: 1, Class: 1}}},
		{"BurstGPT without sessions", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n", true, []Call{
			{Input: 472, Output: 18, BlockTokens: 1}}},
		{"BLIS, by sessions", blis, true, []Call{
			{Input: 150, Output: 20, BlockTokens: PartTokens, Streams: []Stream{{0xaf63da4c8601e926, 100}, {11, 0}}},
			{Due: time.Second, Input: 333, Output: 9, BlockTokens: PartTokens, Class: 1},
			{Due: 3500 * time.Millisecond, Input: 170, Output: 20, BlockTokens: PartTokens, Streams: []Stream{{0xaf63da4c8601e926, 100}, {15, 0}},
				After: 1, Think: 3 * time.Second}}},
		{"vllm bench", bench, true, []Call{
			{Input: 100, Output: 10, BlockTokens: 1}, {Due: 500 * time.Millisecond, Input: 200, Output: 20, BlockTokens: 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, _ := callsOf(t, test.given, test.sessions); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v\nwant %+v", got, test.want)
			}
		})
	}
}

// TestClassesOfTraces: BLIS names tenants and adapters as well.
func TestClassesOfTraces(t *testing.T) {
	for given, want := range map[string][]Class{
		burst: {{Name: "Conversation log"}, {Name: "API log"}},
		blis:  {{Name: "critical", Flow: "t1"}, {Name: "batch", Flow: "t2", Model: "lora-1"}},
		bench: nil,
	} {
		if _, trace := callsOf(t, given, false); !reflect.DeepEqual(trace.Classes, want) {
			t.Errorf("%+v, want %+v", trace.Classes, want)
		}
	}
}

func TestUntimed(t *testing.T) {
	if _, trace := callsOf(t, bench, false); trace.Untimed {
		t.Error("a result with start_times counts as untimed")
	}
	if _, trace := callsOf(t, `{"num_prompts": 1, "input_lens": [5], "output_lens": [6]}`, false); !trace.Untimed {
		t.Error("a result without start_times counts as timed")
	}
}

func TestBrokenFormats(t *testing.T) {
	for name, test := range map[string]struct{ given, want string }{
		"BurstGPT without a time":  {strings.Replace(burst, "45,a", "soon,a", 1), `line 3: "soon" is not a time`},
		"BurstGPT without lengths": {strings.Replace(burst, "417", "", 1), `line 4: "" is not a number of tokens`},
		"BLIS before its epoch":    {strings.Replace(blis, "4500000,4500100", "-1,4500100", 1), `line 3: "-1" is not a time`},
		"BLIS with a negative prefix": {strings.Replace(blis, "g,100,true,50", "g,-100,true,50", 1),
			"line 2: 50 input tokens behind a prefix of -100 cannot be"},
		"vllm bench with an error":     {bench, "request 3: it failed"},
		"vllm bench without lengths":   {`{"num_prompts": 3, "completed": 3}`, "write it with --save-detailed"},
		"vllm bench that ends":         {bench[:len(bench)/2], "unexpected EOF"},
		"vllm bench, not all detailed": {`{"num_prompts": 2, "input_lens": [1, 2], "output_lens": [1]}`, "write it with --save-detailed"},
	} {
		if _, err := ReadTrace(strings.NewReader(test.given), nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %s", name, err, test.want)
		}
	}
}

// TestSessionsOfAPart: a turn whose predecessor is left out begins a session of its own.
func TestSessionsOfAPart(t *testing.T) {
	_, trace := callsOf(t, blis, true)
	trace.Start = 500 * time.Millisecond
	all := trace.Calls(nil, Bound{Requests: 100, Span: time.Hour})
	if len(all) != 2 || all[1].After != 0 || all[1].Due != 3*time.Second {
		t.Errorf("%+v, want two calls, and none after another", all)
	}
	trace.Start, trace.Speed = 0, 2
	if all := trace.Calls(nil, Bound{Requests: 100, Span: time.Hour}); all[2].Think != 1500*time.Millisecond {
		t.Errorf("at twice the speed users think for %v, want 1.5s", all[2].Think)
	}
	if all := trace.Calls(nil, Bound{Requests: 2, Span: time.Hour}); len(all) != 2 {
		t.Errorf("%d calls, want 2", len(all))
	}
}

const classes = `
- {name: chat, share: 3, priority: 1, sloTtft: 500ms, sloTpot: 50ms}
- {name: batch, priority: -1, fairnessId: night, model: lora-2}
`

func TestReadClasses(t *testing.T) {
	got, err := ReadClasses([]byte(classes))
	want := []Class{{Name: "chat", Share: 3, Priority: 1, TTFT: 500 * time.Millisecond, TPOT: 50 * time.Millisecond},
		{Name: "batch", Share: 1, Priority: -1, Flow: "night", Model: "lora-2"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for given, want := range map[string]string{
		"":                               "it is empty",
		"[]":                             "it has 0 classes",
		"- {priority: 1}":                "class 1 has no name",
		"- {name: a}\n- {name: a}":       `two classes "a"`,
		"- {name: a, share: -1}":         "share must be positive",
		"- {name: a, sloTtft: -1s}":      "must not be negative",
		"- {name: a, weight: 3}":         "field weight not found",
		"- {name: a, priority: highest}": "cannot unmarshal",
	} {
		if _, err := ReadClasses([]byte(given)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", given, err, want)
		}
	}
}

func TestClassify(t *testing.T) {
	file, err := ReadClasses([]byte(classes))
	if err != nil {
		t.Fatal(err)
	}
	calls := make([]Call, 4000)
	for i := 2000; i < len(calls); i++ {
		calls[i].After = i - 1999
	}
	if got, err := Classify(random(), calls, nil, file); err != nil || !reflect.DeepEqual(got, file) {
		t.Fatalf("%+v, %v", got, err)
	}
	count := map[int]int{}
	for i := range 2000 {
		count[calls[i].Class]++
		if calls[i].Class != calls[i+2000].Class {
			t.Fatalf("the turns of session %d have classes %d and %d", i, calls[i].Class, calls[i+2000].Class)
		}
	}
	if count[0] < 1400 || count[0] > 1600 {
		t.Errorf("%v sessions by class, want 3 of 4 in the first", count)
	}

	named := []Class{{Name: "chat", Flow: "t1"}, {Name: "else"}, {Name: "batch", Model: "lora-1"}}
	got, err := Classify(random(), nil, named, file)
	chat, batch := file[0], file[1]
	chat.Flow, batch.Model = "t1", "lora-1"
	if want := []Class{chat, {Name: "else"}, batch}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if _, err := Classify(random(), nil, []Class{{Name: "x"}, {Name: "y"}, {Name: "x", Flow: "1"}}, file); err == nil || !strings.Contains(err.Error(), `classes "x", "y"`) {
		t.Errorf("classes that the file does not have: %v", err)
	}
}

func TestRates(t *testing.T) {
	for given, want := range map[string]Rates{"8": {8, 8}, "3-60": {3, 60}, " 2.5 - 1 ": {2.5, 1}} {
		var r, again Rates
		if err := r.UnmarshalText([]byte(given)); err != nil || r != want {
			t.Errorf("%q: %v, %v", given, r, err)
		}
		if err := again.UnmarshalText([]byte(r.String())); err != nil || again != r {
			t.Errorf("%v is written as %q", r, r)
		}
	}
	for _, given := range []string{"", "0", "fast", "-3", "3-", "1e9", "NaN"} {
		if err := new(Rates).UnmarshalText([]byte(given)); err == nil || !strings.Contains(err.Error(), "is not a rate") {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// TestSpace: the rate changes evenly from the first to the last request.
func TestSpace(t *testing.T) {
	for _, test := range []struct {
		name        string
		a           Arrivals
		first, last float64 // requests in a second, in the first and the last tenth of the time
	}{
		{"constant", Arrivals{Rates{10, 10}, true}, 10, 10},
		{"rising, constant", Arrivals{Rates{0.001, 20}, true}, 1, 19},
		{"falling, constant", Arrivals{Rates{20, 0.001}, true}, 19, 1},
		{"rising, Poisson", Arrivals{Rates{10, 30}, false}, 11, 29},
	} {
		calls := make([]Call, 20_001)
		calls[20_000].After = 1
		test.a.Space(random(), calls)
		if calls[20_000].Due != 0 {
			t.Errorf("%s: a later turn has a time", test.name)
		}
		span := calls[19_999].Due
		rate := func(from, to time.Duration) float64 {
			n := 0
			for _, c := range calls[:20_000] {
				if from <= c.Due && c.Due < to {
					n++
				}
			}
			return float64(n) / (to - from).Seconds()
		}
		if first, last := rate(0, span/10), rate(span-span/10, span); math.Abs(first-test.first) > 0.05*test.first+0.2 || math.Abs(last-test.last) > 0.05*test.last+0.2 {
			t.Errorf("%s: %v requests/s at first and %v at last, want %v and %v", test.name, first, last, test.first, test.last)
		}
	}
}

func TestDistributions(t *testing.T) {
	for _, test := range []struct {
		d    dist
		mean float64
	}{
		{fixed(7), 7}, {between(10, 30), 20}, {around(4096, 1024, 16, 16_384), 4096}, {decaying(600, 200, 0), 600}, {skewed(160, 0.5, 1, 0), 160},
	} {
		r, sum := random(), 0.0
		for range 50_000 {
			v := test.d.draw(r)
			if v < test.d.least || test.d.most > 0 && v > test.d.most {
				t.Fatalf("%+v gave %v", test.d, v)
			}
			sum += v
		}
		if mean := sum / 50_000; mean < 0.98*test.mean || mean > 1.02*test.mean {
			t.Errorf("%+v: mean %v, want %v", test.d, mean, test.mean)
		}
	}
}

func TestShapes(t *testing.T) {
	for _, s := range Shapes() {
		t.Run(s.Name, func(t *testing.T) {
			const n = 500
			calls := s.Calls(random(), n)
			if len(calls) != n {
				t.Fatalf("%d calls, want %d", len(calls), n)
			}
			if (s.Arrivals.Rates == Rates{}) == (s.Concurrency == 0) || s.Requests == 0 || s.About == "" {
				t.Errorf("%+v: want rates or a concurrency, and a number of requests", s)
			}
			for i, c := range calls {
				if c.Input < 1 || c.Output < 1 || c.After > i || s.context > 0 && c.Input+c.Output > s.context {
					t.Errorf("call %d: %+v", i, c)
				}
				if c.After == 0 {
					continue
				}
				before := calls[c.After-1]
				if c.After != i || c.Input <= before.Input+before.Output || !reflect.DeepEqual(c.Streams, before.Streams) {
					t.Errorf("turn %+v does not go on from %+v", c, before)
				}
			}
			if fmt.Sprint(calls) != fmt.Sprint(s.Calls(random(), n)) {
				t.Error("the same random numbers give other calls")
			}
		})
	}
	if _, ok := ShapeOf("cube"); ok {
		t.Error("there is a shape that there is not")
	}
}

// TestShapeSharing: what prompts of one group, and of one question, have in common.
func TestShapeSharing(t *testing.T) {
	s := Shape{groups: 2, prompts: 2, shared: fixed(100), question: between(10, 90), answer: fixed(1), turns: once}
	lengths := map[string]int{}
	for _, c := range s.Calls(random(), 100) {
		key := fmt.Sprint(c.Streams)
		if before, ok := lengths[key]; ok && before != c.Input {
			t.Errorf("a prompt has %d and %d tokens", before, c.Input)
		}
		lengths[key] = c.Input
	}
	if len(lengths) != 4 {
		t.Errorf("%d different prompts, want 4", len(lengths))
	}
	if c := Plain(Lengths{5, 5}, Lengths{6, 6}).Calls(random(), 1)[0]; c.Input != 5 || c.Output != 6 || c.Streams != nil {
		t.Errorf("plain: %+v", c)
	}
}

// TestPromptsOfStreams: the text of a prompt shares what its streams share.
func TestPromptsOfStreams(t *testing.T) {
	w := Writer{Salt: 1, Cost: DefaultCost}
	prompt := func(input, number int, streams ...Stream) string {
		return w.Prompt(&Call{Input: input, Streams: streams}, number)
	}
	base := prompt(300, 0, Stream{1, 100}, Stream{2, 0})
	if n := len(strings.Fields(base)); n != 300 {
		t.Errorf("%d words, want 300", n)
	}
	for name, test := range map[string]struct {
		other       string
		least, most int
	}{
		"the next turn":   {prompt(500, 1, Stream{1, 100}, Stream{2, 0}), 300, 300},
		"another session": {prompt(300, 1, Stream{1, 100}, Stream{3, 0}), 100, 105},
		"another group":   {prompt(300, 1, Stream{4, 100}, Stream{2, 0}), 0, 5},
	} {
		if n := common(base, test.other); n < test.least || n > test.most {
			t.Errorf("%s: %d words in common, want %d to %d", name, n, test.least, test.most)
		}
	}
}
