package workload

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func TestLengths(t *testing.T) {
	for _, test := range []struct {
		given string
		want  Lengths
		err   string
	}{
		{"512", Lengths{512, 512}, ""},
		{"256-1024", Lengths{256, 1024}, ""},
		{" 1 - 2 ", Lengths{1, 2}, ""},
		{"0", Lengths{}, "not a number of tokens"},
		{"-5", Lengths{}, "not a number of tokens"},
		{"many", Lengths{}, "not a number of tokens"},
		{"9-3", Lengths{}, "ends before it begins"},
		{"99999999999", Lengths{}, "not a number of tokens"},
	} {
		var l Lengths
		err := l.UnmarshalText([]byte(test.given))
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: error %v, want %s", test.given, err, test.err)
			}
			continue
		}
		if err != nil || l != test.want {
			t.Errorf("%q: %v, %v", test.given, l, err)
		}
		var again Lengths
		if err := again.UnmarshalText([]byte(l.String())); err != nil || again != l {
			t.Errorf("%v is written as %q", l, l)
		}
	}
}

func TestPoissonArrivals(t *testing.T) {
	const rate = 50.0
	s := Synthetic{Input: Lengths{10, 20}, Output: Lengths{5, 5}, Rate: rate}
	calls := s.Calls(random(), Bound{Requests: 20_000, Span: time.Hour})
	var gaps []float64
	for i := 1; i < len(calls); i++ {
		gaps = append(gaps, (calls[i].Due - calls[i-1].Due).Seconds())
	}
	mean, squares := 0.0, 0.0
	for _, g := range gaps {
		mean += g / float64(len(gaps))
	}
	for _, g := range gaps {
		squares += (g - mean) * (g - mean) / float64(len(gaps))
	}
	// The gaps of a Poisson process are as spread out as they are long.
	if math.Abs(mean*rate-1) > 0.05 || math.Abs(math.Sqrt(squares)/mean-1) > 0.05 {
		t.Errorf("mean gap %v, deviation %v, want %v for both", mean, math.Sqrt(squares), 1/rate)
	}
	if !reflect.DeepEqual(calls, s.Calls(random(), Bound{Requests: 20_000, Span: time.Hour})) {
		t.Error("the same random numbers give other calls")
	}
	least, most := slices.MinFunc(calls, byInput), slices.MaxFunc(calls, byInput)
	if least.Input != 10 || most.Input != 20 {
		t.Errorf("lengths from %d to %d", least.Input, most.Input)
	}
}

func byInput(a, b Call) int { return a.Input - b.Input }

func TestConstantArrivalsAndBounds(t *testing.T) {
	s := Synthetic{Input: Lengths{1, 1}, Output: Lengths{1, 1}, Rate: 4, Constant: true}
	calls := s.Calls(random(), Bound{Requests: 100, Span: time.Second})
	var dues []time.Duration
	for _, c := range calls {
		dues = append(dues, c.Due)
	}
	want := []time.Duration{0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond}
	if !slices.Equal(dues, want) {
		t.Errorf("due at %v, want %v", dues, want)
	}
	if n := len(s.Calls(random(), Bound{Requests: 3, Span: time.Second})); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}

const (
	mooncake = `{"timestamp": 1000, "input_length": 1100, "output_length": 20, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1400, "output_length": 30, "hash_ids": [0, 1, 7]}

{"timestamp": 2000, "input_length": 5000, "output_length": 0}
`
	records = `{"point":"p","side":"all","round":1,"due_ms":500,"late_ms":0,"ttft_ms":9,"e2e_ms":20,"itl_ms":[5,6],"input_tokens":100,"output_tokens":3}
{"point":"p","side":"all","round":1,"due_ms":2000,"late_ms":0,"ttft_ms":7,"e2e_ms":20,"itl_ms":[5],"input_tokens":70,"output_tokens":2}
{"point":"p","side":"all","round":2,"due_ms":0,"late_ms":0,"ttft_ms":7,"e2e_ms":20,"itl_ms":[5],"input_tokens":70,"output_tokens":2}
`
	azure = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.9799600,110,27\n"
)

func TestTraceFormats(t *testing.T) {
	for _, test := range []struct {
		name, given string
		change      func(*Trace)
		want        []Call
	}{
		{"Mooncake, sorted by time", mooncake, nil, []Call{
			{Due: 0, Input: 1100, Output: 20, Blocks: []int64{0, 1, 2}, BlockTokens: 512}, {Due: time.Second, Input: 5000, Output: 1, BlockTokens: 512}, {Due: 2 * time.Second, Input: 1400, Output: 30, Blocks: []int64{0, 1, 7}, BlockTokens: 512}}},
		{"twice as fast, half as long", mooncake, func(t *Trace) { t.Speed, t.Tokens = 2, 0.5 }, []Call{
			{Due: 0, Input: 550, Output: 10, Blocks: []int64{0, 1, 2}, BlockTokens: 256}, {Due: time.Second / 2, Input: 2500, Output: 1, BlockTokens: 256}, {Due: time.Second, Input: 700, Output: 15, Blocks: []int64{0, 1, 7}, BlockTokens: 256}}},
		{"without long prompts", mooncake, func(t *Trace) { t.MaxInput = 2000 }, []Call{
			{Due: 0, Input: 1100, Output: 20, Blocks: []int64{0, 1, 2}, BlockTokens: 512}, {Due: 2 * time.Second, Input: 1400, Output: 30, Blocks: []int64{0, 1, 7}, BlockTokens: 512}}},
		{"from the middle", mooncake, func(t *Trace) { t.Start = 1500 * time.Millisecond }, []Call{
			{Due: time.Second / 2, Input: 1400, Output: 30, Blocks: []int64{0, 1, 7}, BlockTokens: 512}}},
		{"records of tandem load, the first round", records, nil, []Call{
			{Due: 0, Input: 100, Output: 3, BlockTokens: 1}, {Due: 1500 * time.Millisecond, Input: 70, Output: 2, BlockTokens: 1}}},
		{"Azure", azure, nil, []Call{{Due: 0, Input: 4808, Output: 10, BlockTokens: 1}, {Due: time.Second, Input: 110, Output: 27, BlockTokens: 1}}},
		{"Azure with a time zone", strings.ReplaceAll(azure, "9799600,", "979960+00:00,"), nil,
			[]Call{{Due: 0, Input: 4808, Output: 10, BlockTokens: 1}, {Due: time.Second, Input: 110, Output: 27, BlockTokens: 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			trace, err := ReadTrace(strings.NewReader(test.given), nil)
			if err != nil {
				t.Fatal(err)
			}
			if test.change != nil {
				test.change(trace)
			}
			if got := trace.Calls(nil, Bound{Requests: 10, Span: time.Hour}); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%+v\nwant %+v", got, test.want)
			}
		})
	}
}

// TestMeasuredTimes: the times of the requests of a trace come in order.
func TestMeasuredTimes(t *testing.T) {
	trace, err := ReadTrace(strings.NewReader(records), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := (&Measured{TTFT: []float64{7, 9}, ITL: []float64{5, 5, 6}, TPOT: []float64{5.5, 13}}); !reflect.DeepEqual(trace.Measured, want) {
		t.Errorf("%+v, want %+v", trace.Measured, want)
	}
}

func TestBrokenTraces(t *testing.T) {
	for name, test := range map[string]struct{ given, want string }{
		"empty":            {"", "it is empty"},
		"only a heading":   {"TIMESTAMP,ContextTokens,GeneratedTokens\n", "it has no requests"},
		"other columns":    {"time,in,out\n1,2,3\n", `neither JSON lines (timestamp, input_length, output_length, hash_ids), nor a result of vllm bench serve, nor CSV with the columns TIMESTAMP`},
		"broken line":      {mooncake + "{\n", "line 5: "},
		"negative length":  {`{"timestamp":0,"input_length":-1}`, "line 1: -1 input"},
		"no time":          {"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", `line 2: "noon" is not a date and time`},
		"not streamed":     {`{"point":"p","side":"all","round":1,"due_ms":500,"late_ms":0,"e2e_ms":20,"input_tokens":100}`, "line 1: its answer was not streamed"},
		"no number":        {strings.Replace(azure, "4808", "x", 1), `line 2: "x" is not a number of tokens`},
		"too few in a row": {azure + "2023\n", "wrong number of fields"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ReadTrace(strings.NewReader(test.given), nil); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
		})
	}
}

// common returns how many words two texts have in common before the first that differs.
func common(a, b string) (n int) {
	x, y := strings.Fields(a), strings.Fields(b)
	for n < min(len(x), len(y)) && x[n] == y[n] {
		n++
	}
	return n
}

func TestPromptLengths(t *testing.T) {
	w := Writer{Salt: 1, Cost: Cost{Fixed: 20, PerWord: 2}}
	for tokens, want := range map[int]int{1000: 490, 20: 1, 1: 1, 23: 2} {
		if n := len(strings.Fields(w.Prompt(&Call{Input: tokens}, 0))); n != want {
			t.Errorf("%d tokens are %d words, want %d", tokens, n, want)
		}
	}
	blocks := &Call{Input: 1000, Blocks: []int64{1, 2, 3}, BlockTokens: 512}
	if n := len(strings.Fields(w.Prompt(blocks, 0))); n != 490 {
		t.Errorf("with more blocks than tokens, %d words, want 490", n)
	}
}

func TestPromptsShareOnlyTheirBlocks(t *testing.T) {
	w := Writer{Salt: 1, Cost: DefaultCost}
	call := func(blocks ...int64) *Call { return &Call{Input: 400, Blocks: blocks, BlockTokens: 100} }
	base := w.Prompt(call(0, 1, 2), 0)
	for _, test := range []struct {
		name        string
		other       string
		least, most int // words in common
	}{
		{"the same blocks", w.Prompt(call(0, 1, 2), 1), 300, 305},
		{"two of three", w.Prompt(call(0, 1, 9), 1), 200, 205},
		{"another beginning", w.Prompt(call(5, 1, 2), 1), 0, 5},
		{"no blocks", w.Prompt(&Call{Input: 400}, 1), 0, 5},
		{"another round", Writer{Salt: 2, Cost: DefaultCost}.Prompt(call(0, 1, 2), 0), 0, 5},
		{"the same call", w.Prompt(call(0, 1, 2), 0), 400, 400},
	} {
		if n := common(base, test.other); n < test.least || n > test.most {
			t.Errorf("%s: %d words in common, want %d to %d", test.name, n, test.least, test.most)
		}
	}
	if one, other := NewSalt(), NewSalt(); one == other {
		t.Errorf("two salts are %d", one)
	}
}

// A shared part of different lengths is still a common beginning.
func TestSharedPrefix(t *testing.T) {
	s := Synthetic{Input: Lengths{100, 300}, Output: Lengths{1, 1}, Share: 0.5, Groups: 2}
	calls := s.Calls(random(), Bound{Requests: 50, Span: time.Hour})
	w := Writer{Salt: 3, Cost: DefaultCost}
	groups := map[int64]bool{}
	for i := range calls {
		groups[calls[i].Blocks[0]] = true
		for j := range i {
			n := common(w.Prompt(&calls[i], i), w.Prompt(&calls[j], j))
			want := 0
			if calls[i].Blocks[0] == calls[j].Blocks[0] {
				want = min(calls[i].Input, calls[j].Input) / 2
			}
			if n < want || n > want+5 {
				t.Fatalf("%d words in common, want %d", n, want)
			}
		}
	}
	if len(groups) != 2 {
		t.Errorf("%d groups", len(groups))
	}
}

func TestCostOf(t *testing.T) {
	for _, test := range []struct {
		name   string
		tokens [2]int
		want   Cost
		ok     bool
	}{
		{"a template of 12 tokens", [2]int{44, 268}, Cost{12, 1}, true},
		{"a small vocabulary", [2]int{64, 512}, Cost{0, 2}, true},
		{"long words by chance in the longer prompt", [2]int{80, 704}, Cost{0, 2.75}, true},
		{"not told", [2]int{-1, -1}, Cost{}, false},
		{"the same for any length", [2]int{5, 5}, Cost{}, false},
		{"fewer for more", [2]int{500, 5}, Cost{}, false},
	} {
		if got, ok := CostOf([2]int{32, 256}, test.tokens); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %t", test.name, got, ok)
		}
	}
}

// TestUnusableLines: a caller that takes note of unusable lines gets the others.
func TestUnusableLines(t *testing.T) {
	for _, test := range []struct {
		name, given string
		want        []string
	}{
		{"JSON lines", `{"timestamp":0,"input_length":1,"output_length":1}
{"timestamp":
{"timestamp":1,"input_length":-1,"output_length":1}
{"timestamp":2,"input_length":1,"output_length":1}`, []string{"line 2: ", "line 3: -1 input"}},
		{"CSV", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n2023-11-16 18:17:03,1\nnow,1,1\n2023-11-16 18:17:04,1,1\n",
			[]string{"line 3", "line 4: \"now\""}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var named []error
			trace, err := ReadTrace(strings.NewReader(test.given), func(err error) error { named = append(named, err); return nil })
			if err != nil {
				t.Fatal(err)
			}
			if len(trace.calls) != 2 || len(named) != len(test.want) {
				t.Fatalf("%d calls, and these lines left out: %v", len(trace.calls), named)
			}
			for i, err := range named {
				if !strings.Contains(err.Error(), test.want[i]) {
					t.Errorf("%v, want %q", err, test.want[i])
				}
			}
		})
	}
}
