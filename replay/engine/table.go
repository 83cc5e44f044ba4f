package engine

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed tables/*.csv
var tables embed.FS

// Hardware is what one engine of a preset is made of.
type Hardware struct {
	GPUs     int
	KVTokens int // tokens that its KV cache holds
	KVBytes  int // of one token
}

// presets: the KV cache is 90 % of the GPUs' memory less the weights, as vLLM sizes it, without activations. Bytes are those of
// 16-bit KV caches.
var presets = map[string]Hardware{
	"deepseek-r1-h200-tp8":   {GPUs: 8, KVTokens: 4_600_000, KVBytes: 69 << 10},
	"gpt-oss-120b-h100-tp2":  {GPUs: 2, KVTokens: 1_070_000, KVBytes: 72 << 10},
	"llama-70b-h100-tp4":     {GPUs: 4, KVTokens: 448_000, KVBytes: 320 << 10},
	"llama-70b-h200-tp2-fp8": {GPUs: 2, KVTokens: 559_000, KVBytes: 320 << 10},
	"llama-8b-a100":          {GPUs: 1, KVTokens: 427_000, KVBytes: 128 << 10},
	"llama-8b-h100":          {GPUs: 1, KVTokens: 427_000, KVBytes: 128 << 10},
	"llama-8b-l40s":          {GPUs: 1, KVTokens: 207_000, KVBytes: 128 << 10},
	"qwen3-30b-a3b-h100":     {GPUs: 1, KVTokens: 111_000, KVBytes: 96 << 10},
	"qwen3-32b-h100-tp1-fp8": {GPUs: 1, KVTokens: 148_000, KVBytes: 256 << 10},
	"qwen3-32b-h100-tp2":     {GPUs: 2, KVTokens: 299_000, KVBytes: 256 << 10},
}

// Presets returns the names of the tables of this package, in order.
func Presets() []string {
	var names []string
	files, _ := tables.ReadDir("tables") // embedded: it exists
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".csv"))
	}
	return names
}

// Preset returns the table and the hardware of one of Presets.
func Preset(name string) (*Table, Hardware, error) {
	hardware, known := presets[name]
	if !known {
		return nil, Hardware{}, fmt.Errorf("there is no engine %q: use one of %s, or a file with a table of step times", name, strings.Join(Presets(), ", "))
	}
	f, err := tables.Open(path.Join("tables", name+".csv"))
	if err != nil {
		return nil, Hardware{}, err
	}
	defer f.Close()
	t, _, err := ReadTable(f)
	return t, hardware, err
}

// Table has the times of steps, in milliseconds.
type Table struct {
	prefill surface     // by context, then new tokens
	decode  surface     // by batch, then context
	mixed   []mixedRows // by new tokens
}

// mixedRows are the mixed steps with one number of new tokens, as shares of the time that the prefill and the decode steps take one
// after the other: by batch, then context.
type mixedRows struct {
	tokens float64
	share  surface
}

// Step is what one step computes.
type Step struct {
	New    int     // tokens of prompts
	Before float64 // tokens of these prompts that were computed before, on average
	Batch  int     // running requests that each get a token
	// Context is how many tokens each running request has, on average.
	Context float64
}

// Milliseconds returns how long a step takes. Between the rows of the table it interpolates; beyond them it goes on as the last two
// rows do. A mixed step takes a share of the sum of its parts: weights are read once.
func (t *Table) Milliseconds(s Step) float64 {
	switch {
	case s.New == 0 && s.Batch == 0:
		return 0
	case s.New == 0:
		return t.decode.at(float64(s.Batch), s.Context)
	case s.Batch == 0:
		return t.prefill.at(s.Before, float64(s.New))
	}
	prefill, decode := t.prefill.at(s.Before, float64(s.New)), t.decode.at(float64(s.Batch), s.Context)
	return max(decode, t.share(s)*(prefill+decode))
}

// share returns the share for a mixed step. A prompt of one token is one more running request: such a step takes as long as the
// decode step.
func (t *Table) share(s Step) float64 {
	batch, tokens := float64(s.Batch), float64(s.New)
	if len(t.mixed) == 0 {
		return 1
	}
	i, _ := slices.BinarySearchFunc(t.mixed, tokens, func(m mixedRows, tokens float64) int { return cmp.Compare(m.tokens, tokens) })
	if i == len(t.mixed) {
		return t.mixed[i-1].share.within(batch, s.Context)
	}
	high := t.mixed[i].share.within(batch, s.Context)
	if i > 0 {
		low := t.mixed[i-1]
		return between(tokens, low.tokens, t.mixed[i].tokens, low.share.within(batch, s.Context), high)
	}
	decode := t.decode.at(batch, s.Context)
	return between(tokens, 1, t.mixed[0].tokens, decode/(decode+t.prefill.at(0, 1)), high)
}

// surface is a function of two numbers, known at points.
type surface []row

type row struct {
	x      float64
	points []point
}

type point struct{ x, y float64 }

// at interpolates between the two nearest rows, and beyond the last ones goes on in their direction. It is never less than half of the
// least known value: a direction may lead below zero.
func (s surface) at(x, y float64) float64 {
	return max(s.least()/2, along(len(s), func(i int) float64 { return s[i].x }, func(i int) float64 { return s[i].at(y) }, x))
}

// within is at for the nearest x and y that are known.
func (s surface) within(x, y float64) float64 {
	x = min(max(x, s[0].x), s[len(s)-1].x)
	first := s[0].points
	return s.at(x, min(max(y, first[0].x), first[len(first)-1].x))
}

func (s surface) least() float64 { return s[0].points[0].y }

func (r row) at(x float64) float64 {
	return along(len(r.points), func(i int) float64 { return r.points[i].x }, func(i int) float64 { return r.points[i].y }, x)
}

// along interpolates between n points in the order of their x.
func along(n int, x, y func(int) float64, at float64) float64 {
	if n == 1 {
		return y(0)
	}
	i := 1
	for i < n-1 && x(i) < at {
		i++
	}
	return between(at, x(i-1), x(i), y(i-1), y(i))
}

func between(at, x0, x1, y0, y1 float64) float64 { return y0 + (y1-y0)*(at-x0)/(x1-x0) }

// Columns are those of a table, in this order.
var Columns = []string{"kind", "new_tokens", "batch", "context", "ms"}

// ReadTable reads a table as CSV with the columns kind, new_tokens, batch, context and ms. It needs rows of the kinds prefill and
// decode; without mixed ones, a mixed step takes as long as both parts. Lines that begin with # are comments, which may have Settings.
// An error names the line.
func ReadTable(r io.Reader) (*Table, Settings, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxTable))
	if err != nil {
		return nil, Settings{}, fmt.Errorf("reading a table of step times: %w", err)
	}
	settings, err := readSettings(text)
	if err != nil {
		return nil, settings, err
	}
	t, err := readRows(bytes.NewReader(text))
	return t, settings, err
}

// maxTable bounds a table, in bytes.
const maxTable = 8 << 20

func readRows(r io.Reader) (*Table, error) {
	lines := csv.NewReader(r)
	lines.Comment = '#'
	head, err := lines.Read()
	if err != nil || !slices.Equal(head, Columns) {
		return nil, fmt.Errorf("reading a table of step times: the first line must be %s", strings.Join(Columns, ","))
	}
	t := &Table{}
	mixed := map[float64]surface{}
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		line, _ := lines.FieldPos(0)
		var n [4]float64
		for i := 0; err == nil && i < len(n); i++ {
			if n[i], err = strconv.ParseFloat(fields[i+1], 64); err == nil && !(n[i] >= 0 && n[i] < math.MaxInt32) {
				err = fmt.Errorf("%s cannot be %s", Columns[i+1], fields[i+1])
			}
		}
		if err == nil && n[3] == 0 {
			err = errors.New("a step takes time: ms must be more than 0")
		}
		if err != nil {
			return nil, fmt.Errorf("reading a table of step times: line %d: %w", line, err)
		}
		switch fields[0] {
		case "prefill":
			t.prefill.add(n[2], n[0], n[3])
		case "decode":
			t.decode.add(n[1], n[2], n[3])
		case "mixed":
			s := mixed[n[0]]
			s.add(n[1], n[2], n[3])
			mixed[n[0]] = s
		default:
			return nil, fmt.Errorf("reading a table of step times: line %d: kind is %q, want prefill, decode or mixed", line, fields[0])
		}
	}
	return t, t.finish(mixed)
}

// finish orders the rows, and makes shares of the mixed ones.
func (t *Table) finish(mixed map[float64]surface) error {
	if err := errors.Join(t.prefill.order("prefill"), t.decode.order("decode")); err != nil {
		return err
	}
	for tokens, times := range mixed {
		if err := times.order("mixed"); err != nil {
			return err
		}
		for _, r := range times {
			for i, p := range r.points {
				r.points[i].y = p.y / (t.prefill.at(0, tokens) + t.decode.at(r.x, p.x))
			}
		}
		t.mixed = append(t.mixed, mixedRows{tokens, times})
	}
	slices.SortFunc(t.mixed, func(a, b mixedRows) int { return cmp.Compare(a.tokens, b.tokens) })
	return nil
}

func (s *surface) add(x, y, value float64) {
	i := slices.IndexFunc(*s, func(r row) bool { return r.x == x })
	if i < 0 {
		i, *s = len(*s), append(*s, row{x: x})
	}
	(*s)[i].points = append((*s)[i].points, point{y, value})
}

// order sorts the rows and their points. The error says what is missing or twice.
func (s surface) order(kind string) error {
	if len(s) == 0 {
		return fmt.Errorf("reading a table of step times: it has no rows of kind %s", kind)
	}
	slices.SortFunc(s, func(a, b row) int { return cmp.Compare(a.x, b.x) })
	for _, r := range s {
		slices.SortFunc(r.points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		for i := range r.points[1:] {
			if r.points[i].x == r.points[i+1].x {
				return fmt.Errorf("reading a table of step times: it has two rows of kind %s for the same step", kind)
			}
		}
	}
	return nil
}
