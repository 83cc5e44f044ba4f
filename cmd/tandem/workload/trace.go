package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp/capture"
)

// Trace is the recorded traffic of a production system, and how to replay it.
type Trace struct {
	Speed    float64       // 2: arrivals come twice as fast
	Tokens   float64       // 0.5: prompts and answers are half as long
	MaxInput int           // longer prompts, after Tokens, are left out; 0: none is
	Start    time.Duration // in the trace's own time: what comes before is left out
	// Sessions has the later turns of a session wait for the answer before them (see Call.After); otherwise they come when they came.
	Sessions bool
	Classes  []Class          // that the trace names
	Untimed  bool             // the trace does not say when its calls were due
	Capture  *capture.Capture // nil: it is no capture of Tandem's picker
	Measured *Measured        // nil: it says nothing of the answers' times
	Note     string           // what was assumed that the trace does not say; "" = nothing

	calls []Call // by Due, in the trace's own time and lengths
}

// reading is a trace that is being read.
type reading struct {
	unusable func(error) error
	calls    []Call
	sessions map[string]int32
	classes  []Class
	numbers  map[Class]int
	untimed  bool
	capture  *capture.Capture
	measured *Measured
	note     string
}

// format is a format of traces.
type format struct {
	is   func(beginning []byte) bool
	read func(*reading, io.Reader) error
}

// formats are all formats; the first that a file looks like counts.
var formats = []format{
	{capture.Begins, (*reading).captured},
	{isRecords, (*reading).records},
	{isVLLM, (*reading).vllm},
	{func(b []byte) bool { return b[0] == '{' }, (*reading).mooncake},
	{func([]byte) bool { return true }, (*reading).table},
}

// ReadTrace reads a trace in one of these formats, which it tells apart by their beginnings:
//
//   - the capture of Tandem's picker (package epp/capture);
//   - the records of tandem load;
//   - Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids (of 512 tokens each, may be left out);
//   - the JSON that vllm bench serve writes with --save-detailed: input_lens, output_lens, start_times;
//   - CSV with the columns of one of tables.
//
// Speed and Tokens of the result are 1. unusable is called with what is wrong with a line, and its number: if it returns nil, the line
// is left out, otherwise reading ends with its error. A nil unusable has every such error end the reading.
func ReadTrace(r io.Reader, unusable func(error) error) (*Trace, error) {
	if unusable == nil {
		unusable = func(err error) error { return err }
	}
	buffered := bufio.NewReaderSize(r, 1<<20)
	beginning, err := buffered.Peek(4096)
	if len(beginning) == 0 {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		return nil, err
	}
	read := &reading{unusable: unusable, sessions: map[string]int32{}, numbers: map[Class]int{}}
	i := slices.IndexFunc(formats, func(f format) bool { return f.is(beginning) })
	if err := formats[i].read(read, buffered); err != nil {
		return nil, err
	}
	if len(read.calls) == 0 {
		return nil, errors.New("it has no requests")
	}
	slices.SortStableFunc(read.calls, func(a, b Call) int { return cmp.Compare(a.Due, b.Due) })
	for i, start := 0, read.calls[0].Due; i < len(read.calls); i++ {
		read.calls[i].Due -= start
	}
	read.link()
	return &Trace{Speed: 1, Tokens: 1, Classes: read.classes, Untimed: read.untimed, Capture: read.capture, Measured: read.measured, Note: read.note, calls: read.calls}, nil
}

// add adds a call, unless err or its lengths say that its line cannot be used.
func (r *reading) add(where string, number int, c Call, err error) error {
	if err == nil {
		err = c.plausible()
	}
	if err != nil {
		return r.unusable(fmt.Errorf("%s %d: %w", where, number, err))
	}
	r.calls = append(r.calls, c)
	return nil
}

// link finds the turn before each later one of a session. Until then Think is how long its own answer took.
func (r *reading) link() {
	last := map[int32]int{}
	took := make([]time.Duration, len(r.calls))
	for i := range r.calls {
		c := &r.calls[i]
		took[i], c.Think = c.Think, 0
		if c.session == 0 {
			continue
		}
		if before, ok := last[c.session]; ok {
			c.After, c.Think = before+1, max(0, c.Due-r.calls[before].Due-took[before])
		}
		last[c.session] = i
	}
}

// session returns the number of a session, 0 for no name.
func (r *reading) session(name string) int32 {
	if name == "" {
		return 0
	}
	n, ok := r.sessions[name]
	if !ok {
		n = int32(len(r.sessions) + 1)
		r.sessions[strings.Clone(name)] = n
	}
	return n
}

// class returns the index of a class.
func (r *reading) class(c Class) int {
	i, ok := r.numbers[c]
	if !ok {
		i = len(r.classes)
		r.numbers[c], r.classes = i, append(r.classes, c)
	}
	return i
}

// mooncakeBlock is the number of tokens that one hash id of a Mooncake trace stands for.
const mooncakeBlock = 512

// mooncake reads JSON lines.
func (r *reading) mooncake(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 16<<20) // a prompt of a million tokens has two thousand ids
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var row struct {
			Timestamp float64 `json:"timestamp"` // ms
			Input     int     `json:"input_length"`
			Output    int     `json:"output_length"`
			Blocks    []int64 `json:"hash_ids"`
		}
		err := json.Unmarshal(lines.Bytes(), &row)
		if err := r.add("line", number, Call{Due: time.Duration(row.Timestamp * float64(time.Millisecond)), Input: row.Input, Output: row.Output,
			Blocks: row.Blocks, BlockTokens: mooncakeBlock}, err); err != nil {
			return err
		}
	}
	return lines.Err()
}

// isVLLM reports whether a file looks like a result of vllm bench serve, whose settings come first.
func isVLLM(beginning []byte) bool {
	return beginning[0] == '{' && (bytes.Contains(beginning, []byte(`"num_prompts"`)) || bytes.Contains(beginning, []byte(`"input_lens"`)))
}

// vllm reads results of vllm bench serve: each is one object, and --append-result writes several.
func (r *reading) vllm(from io.Reader) error {
	for results, number := json.NewDecoder(from), 0; ; {
		var result struct {
			Input  []int     `json:"input_lens"`
			Output []int     `json:"output_lens"`
			Start  []float64 `json:"start_times"` // seconds, of a clock that begins anywhere
			Errors []string  `json:"errors"`
		}
		err := results.Decode(&result)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(result.Output) == 0 || len(result.Input) != len(result.Output) || len(result.Start) > 0 && len(result.Start) != len(result.Input):
			return errors.New("the result of vllm bench has no lengths of single requests: write it with --save-detailed")
		}
		r.untimed = r.untimed || len(result.Start) == 0
		for i := range result.Input {
			c := Call{Input: result.Input[i], Output: result.Output[i], BlockTokens: 1}
			if len(result.Start) > 0 {
				c.Due = time.Duration(result.Start[i] * float64(time.Second))
			}
			var failed error
			if i < len(result.Errors) && result.Errors[i] != "" {
				failed = errors.New("it failed, so the length of its answer is not known")
			}
			number++
			if err := r.add("request", number, c, failed); err != nil {
				return err
			}
		}
	}
}

// HasSessions reports whether the trace names sessions of several turns.
func (t *Trace) HasSessions() bool {
	return slices.ContainsFunc(t.calls, func(c Call) bool { return c.After > 0 })
}

// Calls implements Source. A trace is not random: every round replays the same part of it.
func (t *Trace) Calls(_ *rand.Rand, bound Bound) (all []Call) {
	var kept []int // number among all, of each call of the trace; 0: it is left out
	if t.Sessions {
		kept = make([]int, len(t.calls))
	}
	for i, c := range t.calls {
		due := scaledTime(c.Due-t.Start, t.Speed)
		if len(all) == bound.Requests || due >= bound.Span {
			break
		}
		if due < 0 {
			continue
		}
		c.Due = due
		c.Input, c.Output = scaled(c.Input, t.Tokens), scaled(c.Output, t.Tokens)
		c.BlockTokens = scaled(c.BlockTokens, t.Tokens)
		if t.MaxInput > 0 && c.Input > t.MaxInput {
			continue
		}
		if t.Tokens != 1 && len(c.Streams) > 0 {
			c.Streams = slices.Clone(c.Streams)
			for i := range c.Streams {
				c.Streams[i].Tokens = scaled(c.Streams[i].Tokens, t.Tokens)
			}
		}
		if t.Sessions && c.After > 0 && kept[c.After-1] > 0 {
			c.After, c.Think = kept[c.After-1], scaledTime(c.Think, t.Speed)
		} else {
			c.After, c.Think = 0, 0
		}
		all = append(all, c)
		if t.Sessions {
			kept[i] = len(all)
		}
	}
	return all
}

// scaled multiplies a length, which stays at least one token: an engine refuses an empty prompt.
func scaled(tokens int, factor float64) int { return max(1, int(math.Round(float64(tokens)*factor))) }

func (c *Call) plausible() error {
	if c.Input < 0 || c.Input > maxTokens || c.Output < 0 || c.Output > maxTokens {
		return fmt.Errorf("%d input and %d output tokens cannot be", c.Input, c.Output)
	}
	return nil
}
