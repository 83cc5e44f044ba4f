package page

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tandem-serving/tandem/epp"
)

func builtinProgram(t testing.TB, engine string) *Program {
	t.Helper()
	x := DefaultExtractor()
	c := x.engine(engine)
	if c == nil {
		t.Fatalf("no engine is named %q", engine)
	}
	return c.compile()
}

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// loadOf reads a page; ok is that of page.load.
func loadOf(t testing.TB, prog *Program, from io.Reader) (epp.Load, bool) {
	t.Helper()
	var r Reader
	if err := r.read(from, 1<<30, prog); err != nil {
		t.Fatalf("reading the page: %v", err)
	}
	return r.load(&epp.Load{})
}

// signals returns the values of the signals that every engine reports.
func signals(waiting, running, usage float64) epp.Values {
	return epp.Values{}.With(epp.Waiting, waiting).With(epp.Running, running).With(epp.KVUsage, usage)
}

// vllmSignals returns those that vLLM reports, of one that delays no request and has read nothing.
func vllmSignals(waiting, running, usage float64) epp.Values {
	return signals(waiting, running, usage).With(epp.Delayed, 0).With(epp.ReadTokens, 0)
}

// only are values of which one is known.
func only(s epp.Signal, value float64) epp.Load {
	return epp.Load{Signals: epp.Values{}.With(s, value)}
}

func TestGoldenPages(t *testing.T) {
	cases := []struct {
		engine, file string
		want         epp.Load
	}{
		{"vllm", "vllm-idle.txt", epp.Load{Signals: vllmSignals(0, 0, 0), Cache: epp.CacheInfo{BlockTokens: 32, Blocks: 512}}},
		{"vllm", "vllm-load.txt", epp.Load{Signals: vllmSignals(8, 2, 0.2524461839530333), Cache: epp.CacheInfo{BlockTokens: 32, Blocks: 512}}},
		{"vllm", "vllm-dp2.txt", epp.Load{Signals: vllmSignals(0, 0, 0.023483365949119372).With(epp.ReadSeconds, 0), Cache: epp.CacheInfo{BlockTokens: 32, Blocks: 2 * 1024}, Connector: epp.ConnectorNIXL,
			Ranks: &epp.Ranks{{Rank: 0, KVUsage: 0.023483365949119372}, {Rank: 1, KVUsage: 0.023483365949119372}}}},
		{"vllm", "vllm-nixl-prefill.txt", epp.Load{Signals: vllmSignals(0, 0, 0).With(epp.ReadSeconds, 0), Cache: epp.CacheInfo{BlockTokens: 32, Blocks: 512},
			Connector: epp.ConnectorNIXL}},
		{"sglang", "sglang.txt", epp.Load{Signals: signals(3, 7, 0.375), Cache: epp.CacheInfo{BlockTokens: 64, Blocks: 512},
			Engine: "sglang", Mode: epp.EnginePlain}},
		{"sglang", "sglang-plain.txt", epp.Load{Signals: signals(0, 0, 0), Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024},
			Engine: "sglang", Mode: epp.EnginePlain}},
		{"sglang", "sglang-prefill.txt", epp.Load{Signals: signals(0, 0, 0), Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024},
			Engine: "sglang", Mode: epp.EnginePrefill}},
		{"sglang", "sglang-prefill-dp2.txt", epp.Load{Signals: signals(0, 0, 0), Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 2 * 1024},
			Engine: "sglang", Mode: epp.EnginePrefill}},
		// Before its first batch an engine shows no gauges of requests.
		{"sglang", "sglang-decode-fresh.txt", epp.Load{Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 1024}, Engine: "sglang", Mode: epp.EngineDecode}},
		{"trtllm-serve", "trtllm-serve.txt", epp.Load{Signals: signals(2, 5, 0.125), Cache: epp.CacheInfo{BlockTokens: 32, Blocks: 4096}}},
		{"triton-tensorrt-llm", "triton-tensorrt-llm.txt", epp.Load{Signals: signals(4, 6, 0.25), Cache: epp.CacheInfo{BlockTokens: 64, Blocks: 2048}}},
		{"triton", "triton.txt", epp.Load{Signals: epp.Values{}.With(epp.Waiting, 9).With(epp.Running, 11)}},
	}
	for _, c := range cases {
		t.Run(c.file, func(t *testing.T) {
			text, prog := recorded(t, c.file), builtinProgram(t, c.engine)
			crlf := bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
			for name, from := range map[string]io.Reader{
				"whole": bytes.NewReader(text), "byte by byte": iotest.OneByteReader(bytes.NewReader(text)),
				"halves": iotest.HalfReader(bytes.NewReader(text)), "end with the data": iotest.DataErrReader(bytes.NewReader(text)),
				"CRLF": bytes.NewReader(crlf), "no last line feed": bytes.NewReader(bytes.TrimRight(text, "\n")),
			} {
				if got, ok := loadOf(t, prog, from); !ok || !reflect.DeepEqual(got, c.want) {
					t.Errorf("%s: got %+v, %v, want %+v", name, got, ok, c.want)
				}
			}
		})
	}
}

func TestPageValues(t *testing.T) {
	const engines = "WAIT{engine=\"0\"} 3\nWAIT{engine=\"1\"} 4\n"
	names := strings.NewReplacer("WAIT", "vllm:num_requests_waiting", "RUN", "vllm:num_requests_running",
		"USAGE", "vllm:kv_cache_usage_perc", "LORA", "vllm:lora_requests_info")
	running1 := only(epp.Running, 1)
	waiting := func(n float64) epp.Load { return only(epp.Waiting, n) }
	usage := func(v float64) epp.Load { return only(epp.KVUsage, v) }
	ranked := func(l epp.Load, ranks ...epp.RankLoad) epp.Load {
		l.Ranks = (*epp.Ranks)(&ranks)
		return l
	}
	cases := []struct {
		name, page string
		want       epp.Load
		none       bool // the page has none of the wanted values
	}{
		{name: "two engines are added", page: engines, want: ranked(waiting(7), epp.RankLoad{Waiting: 3}, epp.RankLoad{Rank: 1, Waiting: 4})},
		{name: "usage of two engines is their mean", page: "USAGE{engine=\"0\"} 0.25\nUSAGE{engine=\"1\"} 0.75",
			want: ranked(usage(.5), epp.RankLoad{KVUsage: .25}, epp.RankLoad{Rank: 1, KVUsage: .75})},
		{name: "ranks of the second node of a deployment", page: "WAIT{engine=\"4\"} 3\nWAIT{engine=\"5\"} 4\nRUN{engine=\"5\"} 2",
			want: ranked(epp.Load{Signals: epp.Values{}.With(epp.Waiting, 7).With(epp.Running, 2)}, epp.RankLoad{Waiting: 3}, epp.RankLoad{Rank: 1, Waiting: 4, Running: 2})},
		{name: "a rank is missing", page: "WAIT{engine=\"4\"} 3\nWAIT{engine=\"6\"} 4", want: waiting(7)},
		{name: "models of one engine", page: "WAIT{engine=\"1\",m=\"a\"} 3\nWAIT{engine=\"1\",m=\"b\"} 4", want: waiting(7)},
		{name: "models of two engines", page: "WAIT{engine=\"1\",m=\"a\"} 3\nWAIT{engine=\"1\",m=\"b\"} 4\nWAIT{engine=\"0\",m=\"b\"} 1",
			want: ranked(waiting(8), epp.RankLoad{Waiting: 1}, epp.RankLoad{Rank: 1, Waiting: 7})},
		{name: "an engine that is no number", page: engines + "WAIT{engine=\"x\"} 1", want: waiting(8)},
		{name: "an engine of an absurd number", page: engines + "WAIT{engine=\"1000000\"} 1", want: waiting(8)},
		{name: "no labels", page: "WAIT 5", want: waiting(5)},
		{name: "empty labels", page: "WAIT{} 5", want: waiting(5)},
		{name: "blanks everywhere", page: "\t WAIT\t{ a = \"b\" , } \t 5 \t", want: waiting(5)},
		{name: "exponent", page: "WAIT 1.2e+01", want: waiting(12)},
		{name: "timestamp", page: "WAIT 5 1795188815000", want: waiting(5)},
		{name: "exemplar", page: "WAIT{a=\"#\"} 5 # {trace=\"x\"} 1 1.5\n# EOF\n", want: waiting(5)},
		{name: "brace and escaped quote in a label", page: `WAIT{a="}\"} 9",b="\\"} 5`, want: waiting(5)},
		{name: "newest moment wins", page: "WAIT{e=\"0\"} 5 10\nWAIT{e=\"0\"} 7 30\nWAIT{e=\"0\"} 6 20\n", want: waiting(7)},
		{name: "series of the newest moment are added", page: "WAIT{e=\"0\"} 5 30\nWAIT{e=\"1\"} 7 30\n", want: waiting(12)},
		{name: "a time beats none", page: "WAIT{e=\"0\"} 5\nWAIT{e=\"0\"} 7 30\n", want: waiting(7)},
		{name: "a newer moment heals", page: "WAIT NaN 10\nWAIT 7 30\n", want: waiting(7)},
		{name: "other families with the same beginning", page: "WAIT_by_reason 5\nvllm:num_requests_waitin 5\nWAIT", none: true},
		{name: "only comments", page: "# TYPE WAIT gauge\n#WAIT 5\n\n", none: true},
		{name: "empty", page: "", none: true},
		{name: "negative", page: "WAIT -1\nRUN 1", want: running1},
		{name: "not a number", page: "WAIT NaN\nRUN 1", want: running1},
		{name: "infinite", page: "WAIT +Inf\nRUN 1", want: running1},
		{name: "absurd", page: "WAIT 1e300\nRUN 1", want: running1},
		{name: "usage in per cent", page: "USAGE 37\nRUN 1", want: running1},
		{name: "one series of two makes no sense", page: engines + "WAIT{engine=\"2\"} -4\nRUN 1", want: running1},
		{name: "one series of two is broken", page: engines + "WAIT{engine=\"2} 4\nRUN 1", want: running1},
		{name: "something behind the timestamp", page: engines + "WAIT 4 5 6\nRUN 1", want: running1},
		{name: "a timestamp that is none", page: engines + "WAIT 4 NaN\nRUN 1", want: running1},
		{name: "an info without numbers", page: "vllm:cache_config_info{block_size=\"None\"} 1\nRUN 1", want: running1},
		{name: "the type of a cache", page: `vllm:cache_config_info{block_size="16",cache_dtype="fp8_e4m3",num_gpu_blocks="7"} 1`,
			want: epp.Load{Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 7, Type: "fp8_e4m3"}}},
		{name: "the model's own type", page: `vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="7"} 1`,
			want: epp.Load{Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 7}}},
		{name: "NIXL", page: "RUN 1\nvllm:nixl_num_kv_expired_reqs_total{engine=\"0\"} 0", want: epp.Load{Signals: epp.Values{}.With(epp.Running, 1), Connector: epp.ConnectorNIXL}},
		{name: "NIXL in a help text", page: "RUN 1\n# HELP vllm:nixl_num_kv_expired_reqs_total", want: running1},
		{name: "delayed", page: engines + "WAIT_by_reason{engine=\"0\",reason=\"capacity\"} 2\nWAIT_by_reason{engine=\"0\",reason=\"deferred\"} 1\n" +
			"WAIT_by_reason{engine=\"1\",reason=\"deferred\"} 4\n", want: epp.Load{Signals: epp.Values{}.With(epp.Waiting, 7).With(epp.Delayed, 5),
			Ranks: &epp.Ranks{{Waiting: 3}, {Rank: 1, Waiting: 4}}}},
		{name: "LoRA", page: `LORA{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters=""} 20` + "\n" +
			`LORA{max_lora="4",running_lora_adapters="old",waiting_lora_adapters="b"} 10`,
			want: epp.Load{LoRA: &epp.LoRA{Max: 4, Running: []string{"a", "b"}}}},
		{name: "LoRA, the latest last", page: `LORA{max_lora="4",running_lora_adapters="old"} 10` + "\n" +
			`LORA{max_lora="2",running_lora_adapters="",waiting_lora_adapters="c"} 20`,
			want: epp.Load{LoRA: &epp.LoRA{Max: 2, Waiting: []string{"c"}}}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := loadOf(t, builtinProgram(t, "vllm"), strings.NewReader(names.Replace(c.page)))
			if ok == c.none || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v (LoRA %+v), %v, want %+v", got, got.LoRA, ok, c.want)
			}
		})
	}
}

func TestPageOfTooLongLines(t *testing.T) {
	prog := builtinProgram(t, "vllm")
	long := strings.Repeat("x", 3*readSize)
	const good = "\nvllm:num_requests_waiting 1\nvllm:num_requests_running 2\n"
	cases := []struct {
		name, page string
		waiting    bool // is known, too
	}{
		{"comment", "# " + long + good, true},
		{"other family", long + "{} 5" + good, true},
		{"wanted family", "vllm:num_requests_waiting{a=\"" + long + "\"} 5" + good, false},
		{"the end of one looks like a line", long + " vllm:num_requests_waiting 9" + good, true},
		{"at the end of the page", good + long, true},
		{"just fits", good + strings.Repeat("y", readSize-1), true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for name, from := range map[string]io.Reader{"whole": strings.NewReader(c.page), "halves": iotest.HalfReader(strings.NewReader(c.page))} {
				got, _ := loadOf(t, prog, from)
				want := only(epp.Running, 2)
				if c.waiting {
					want.Signals.Set(epp.Waiting, 1)
				}
				if got != want {
					t.Errorf("%s: got %+v, want %+v", name, got, want)
				}
			}
		})
	}
}

func TestReaderIsUsedAgain(t *testing.T) {
	var r Reader
	vllm, triton := builtinProgram(t, "vllm"), builtinProgram(t, "triton")
	if err := r.read(bytes.NewReader(recorded(t, "vllm-load.txt")), 1<<20, vllm); err != nil {
		t.Fatal(err)
	}
	if err := r.read(strings.NewReader("nv_inference_exec_count 3"), 1<<20, triton); err != nil {
		t.Fatal(err)
	}
	if got, ok := r.load(&epp.Load{}); !ok || got != only(epp.Running, 3) {
		t.Errorf("got %+v, which is not of the second page", got)
	}
}

func TestReaderEnds(t *testing.T) {
	prog, broken := builtinProgram(t, "vllm"), errors.New("broken")
	var r Reader
	if err := r.read(io.MultiReader(strings.NewReader("vllm:num_requests_waiting 1\n"), iotest.ErrReader(broken)), 1<<20, prog); !errors.Is(err, broken) {
		t.Errorf("a reader that breaks: got %v", err)
	}
	if err := r.read(endless{}, 1<<20, prog); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a page without end: got %v", err)
	}
	if err := r.read(strings.NewReader(strings.Repeat("a", 100)), 100, prog); err != nil {
		t.Errorf("a page of the greatest size: got %v", err)
	}
}

// endless is a page that never ends, and has no line feed.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func TestSameAdaptersAreNotMadeAnew(t *testing.T) {
	const text = `vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 20`
	prog := builtinProgram(t, "vllm")
	first, _ := loadOf(t, prog, strings.NewReader(text))
	var r Reader
	for _, c := range []struct {
		text string
		same bool
	}{{text, true}, {strings.Replace(text, "a,b", "a", 1), false}, {strings.Replace(text, "a,b", "a,b,d", 1), false},
		{strings.Replace(text, "4", "5", 1), false}, {strings.Replace(text, `"c"`, `"d"`, 1), false}} {
		if err := r.read(strings.NewReader(c.text), 1<<20, prog); err != nil {
			t.Fatal(err)
		}
		if got, _ := r.load(&first); (got.LoRA == first.LoRA) != c.same {
			t.Errorf("%s: the same adapters: %v, want %v", c.text, !c.same, c.same)
		}
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	text, prog := recorded(t, "vllm-load.txt"), builtinProgram(t, "vllm")
	var r Reader
	from := bytes.NewReader(text)
	before := &epp.Load{}
	if n := testing.AllocsPerRun(20, func() {
		from.Reset(text)
		if r.read(from, 1<<20, prog) != nil {
			t.Error("the page was not read")
		}
		r.load(before)
	}); n != 0 {
		t.Errorf("reading a page allocates %v times", n)
	}
}

// FuzzPage compares with a plain model of the format, for an engine whose specs have labels and one whose have none.
func FuzzPage(f *testing.F) {
	for _, name := range []string{"triton-tensorrt-llm.txt", "triton.txt"} {
		f.Add(recorded(f, name))
	}
	f.Add([]byte("nv_inference_exec_count{a=\"\\\\\\\"}\",} 1e2 3 # {} 1\r\nnv_inference_exec_count 0x1p3 5\n"))
	f.Add([]byte("nv_trt_llm_request_metrics {request_type=\"waiting\"\"} 1\nnv_trt_llm_request_metrics{request_type=\"wai\\nting\"} 2"))
	x := DefaultExtractor()
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) >= readSize {
			return // the model knows no line that is too long
		}
		for _, engine := range []string{"triton", "triton-tensorrt-llm"} {
			c := x.engine(engine)
			want := modelOf(text, c)
			for _, from := range []io.Reader{bytes.NewReader(text), iotest.OneByteReader(bytes.NewReader(text))} {
				if got, _ := loadOf(t, c.compile(), from); !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: got %+v, want %+v", engine, got, want)
				}
			}
		}
	})
}

var (
	modelLine  = regexp.MustCompile(`(?s)^[ \t]*(?:\{((?:[^"}]|"(?:\\.|[^"\\])*")*)\})?([^{].*)$`)
	modelLabel = regexp.MustCompile(`(?s)^[ \t,]*([^=]*)=[ \t]*"((?:\\.|[^"\\])*)"`)
)

// modelOf reads a page slowly, line by line and spec by spec.
func modelOf(text []byte, c *EngineConfig) (l epp.Load) {
	read := func(of value, spec string) (float64, int, bool) {
		if spec == "" {
			return 0, 0, false
		}
		m, _ := parseSpec(spec)
		total, n, bad, newest := 0.0, 0, false, math.Inf(-1)
		for line := range strings.SplitSeq(string(text), "\n") {
			rest, ours := strings.CutPrefix(strings.TrimLeft(line, " \t"), m.family)
			if rest == "" || !ours || !strings.ContainsAny(rest[:1], "{ \t") {
				continue
			}
			labels, v, at, ok := modelSeries(strings.TrimSuffix(rest, "\r"))
			switch {
			case !ok:
				bad = true
			case len(m.labels) > 0 && labels[m.labels[0].name] != m.labels[0].value, at < newest:
			default:
				if at > newest {
					total, n, bad, newest = 0, 0, false, at
				}
				total, n, bad = total+v, n+1, bad || !(v >= 0) || of == value(epp.KVUsage) && v > 1 || v >= 1<<40
			}
		}
		return total, n, n > 0 && !bad
	}
	for _, s := range c.specs() {
		total, n, known := read(s.of, s.text)
		if !known {
			continue
		}
		switch s.of {
		case value(epp.Waiting):
			l.Signals.Set(epp.Waiting, math.Round(total))
		case value(epp.Running):
			l.Signals.Set(epp.Running, math.Round(total))
		case value(epp.KVUsage):
			l.Signals.Set(epp.KVUsage, total/float64(n))
		case valueBlockTokens:
			l.Cache.BlockTokens = int(total) / n
		case valueBlocks:
			l.Cache.Blocks = int(total)
		}
	}
	return l
}

func modelSeries(rest string) (labels map[string]string, v, at float64, ok bool) {
	parts := modelLine.FindStringSubmatch(rest)
	if parts == nil {
		return nil, 0, 0, false
	}
	labels = map[string]string{}
	for list := parts[1]; ; {
		m := modelLabel.FindStringSubmatch(list)
		if m == nil {
			break
		}
		name := strings.TrimRight(m[1], " \t")
		if _, twice := labels[name]; !twice {
			labels[name] = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(m[2])
		}
		list = list[len(m[0]):]
	}
	number, _, _ := strings.Cut(parts[2], "#")
	fields := strings.FieldsFunc(number, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(fields) != 1 && len(fields) != 2 {
		return nil, 0, 0, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	if at = math.Inf(-1); err == nil && len(fields) == 2 {
		at, err = strconv.ParseFloat(fields[1], 64)
	}
	return labels, v, at, err == nil && !math.IsNaN(at)
}

func BenchmarkPage(b *testing.B) {
	prog := builtinProgram(b, "vllm")
	for _, name := range []string{"vllm-idle.txt", "vllm-nixl-prefill.txt", "vllm-dp2.txt"} {
		b.Run(name, func(b *testing.B) {
			text := recorded(b, name)
			r, from, before := new(Reader), bytes.NewReader(text), &epp.Load{}
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				from.Reset(text)
				if err := r.read(from, 4<<20, prog); err != nil {
					b.Fatal(err)
				}
				if _, ok := r.load(before); !ok {
					b.Fatal("nothing was found")
				}
			}
		})
	}
}

// TestAttributes: custom metrics that are no signals become attributes; those that the page lacks, or has no number for, do not.
func TestAttributes(t *testing.T) {
	c := EngineConfig{Name: "mine", CustomMetrics: []CustomMetric{{"depth", "q_depth{kind=a}"}, {"age", "age_seconds"}, {"nothing", "nothing"}, {"odd", "odd"}}}
	const text = "q_depth{kind=\"a\",engine=\"0\"} 2\nq_depth{kind=\"b\"} 9\nq_depth{kind=\"a\",engine=\"1\"} 3\nage_seconds -1.5\nodd NaN\n"
	got, ok := loadOf(t, c.compile(), strings.NewReader(text))
	want := &epp.Attributes{{Key: "depth", Value: 5}, {Key: "age", Value: -1.5}}
	if !ok || !reflect.DeepEqual(got.Attributes, want) {
		t.Errorf("attributes %v, want %v", got.Attributes, want)
	}
	if got, ok := loadOf(t, c.compile(), strings.NewReader("other 1\n")); ok || got.Attributes != nil {
		t.Errorf("of another page: %v", got.Attributes)
	}
}

// Ranks whose loads have not changed cost no memory.
func TestSameRanks(t *testing.T) {
	prog := builtinProgram(t, "vllm")
	read := func(page string, before *epp.Load) epp.Load {
		var r Reader
		l, err := r.Read(strings.NewReader(page), 1<<20, prog, before)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const page = "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 4\n"
	first := read(page, &epp.Load{})
	if again := read(page, &first); again.Ranks != first.Ranks {
		t.Error("the ranks are other memory")
	}
	if changed := read(strings.Replace(page, " 4", " 5", 1), &first); changed.Ranks == first.Ranks || (*changed.Ranks)[1].Waiting != 5 || (*first.Ranks)[1].Waiting != 4 {
		t.Errorf("changed %v, before %v", *changed.Ranks, *first.Ranks)
	}
	if one := read("vllm:num_requests_waiting{engine=\"0\"} 3\n", &first); one.Ranks != nil {
		t.Errorf("one rank: %v", *one.Ranks)
	}
}
