package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mooncakeBlock is the number of tokens that one hash id of a Mooncake trace stands for.
const mooncakeBlock = 512

// Trace is the recorded traffic of a production system, and how to replay it.
type Trace struct {
	Speed    float64       // 2: arrivals come twice as fast
	Tokens   float64       // 0.5: prompts and answers are half as long
	MaxInput int           // longer prompts, after Tokens, are left out; 0: none is
	Start    time.Duration // in the trace's own time: what comes before is left out

	calls []Call // by Due, in the trace's own time and lengths
}

// ReadTrace reads a trace in one of two formats, which it tells apart by the first character:
//
//   - Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids (of 512 tokens each, may be left out);
//   - the CSV of the Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens.
//
// Speed and Tokens of the result are 1. unusable is called with what is wrong with a line, and its number: if it returns nil, the line
// is left out, otherwise reading ends with its error. A nil unusable has every such error end the reading.
func ReadTrace(r io.Reader, unusable func(error) error) (*Trace, error) {
	if unusable == nil {
		unusable = func(err error) error { return err }
	}
	buffered := bufio.NewReaderSize(r, 1<<20)
	first, err := buffered.Peek(1)
	if errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty")
	} else if err != nil {
		return nil, err
	}
	read := readAzure
	if first[0] == '{' {
		read = readMooncake
	}
	calls, err := read(buffered, unusable)
	if err != nil {
		return nil, err
	}
	if len(calls) == 0 {
		return nil, errors.New("it has no requests")
	}
	slices.SortStableFunc(calls, func(a, b Call) int { return cmp.Compare(a.Due, b.Due) })
	for i, start := 0, calls[0].Due; i < len(calls); i++ {
		calls[i].Due -= start
	}
	return &Trace{Speed: 1, Tokens: 1, calls: calls}, nil
}

// readMooncake reads JSON lines.
func readMooncake(r io.Reader, unusable func(error) error) (calls []Call, err error) {
	lines := bufio.NewScanner(r)
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
		c := Call{Due: time.Duration(row.Timestamp * float64(time.Millisecond)), Input: row.Input, Output: row.Output,
			Blocks: row.Blocks, BlockTokens: mooncakeBlock}
		if err == nil {
			err = c.plausible()
		}
		if err == nil {
			calls = append(calls, c)
		} else if err := unusable(fmt.Errorf("line %d: %w", number, err)); err != nil {
			return nil, err
		}
	}
	return calls, lines.Err()
}

// azureColumns are the columns that a CSV trace must have, in any order and among others.
var azureColumns = [3]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}

// readAzure reads comma-separated values with a heading.
func readAzure(r io.Reader, unusable func(error) error) (calls []Call, err error) {
	rows := csv.NewReader(r)
	rows.ReuseRecord = true
	head, err := rows.Read()
	if err != nil {
		return nil, err
	}
	var at [3]int
	for i, name := range azureColumns {
		at[i] = slices.IndexFunc(head, func(s string) bool { return strings.TrimSpace(strings.TrimPrefix(s, "\ufeff")) == name })
		if at[i] < 0 {
			return nil, fmt.Errorf("it is neither JSON lines (timestamp, input_length, output_length, hash_ids) nor CSV with the columns %s: %q is missing",
				strings.Join(azureColumns[:], ", "), name)
		}
	}
	for number := 2; ; number++ {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return calls, nil
		}
		var c Call
		if err == nil {
			if c, err = azureCall(row[at[0]], row[at[1]], row[at[2]]); err != nil {
				err = fmt.Errorf("line %d: %w", number, err)
			}
		} else if !errors.Is(err, csv.ErrFieldCount) {
			return nil, err
		}
		if err == nil {
			calls = append(calls, c)
		} else if err := unusable(err); err != nil {
			return nil, err
		}
	}
}

// traceEpoch is subtracted from dates, so that differences fit into a duration.
var traceEpoch = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)

func azureCall(timestamp, input, output string) (c Call, err error) {
	at, err := time.Parse("2006-01-02 15:04:05.999999999", strings.TrimSpace(timestamp))
	if err != nil { // the traces of 2024 have a time zone
		if at, err = time.Parse("2006-01-02 15:04:05.999999999Z07:00", strings.TrimSpace(timestamp)); err != nil {
			return c, fmt.Errorf("%q is not a date and time such as 2023-11-16 18:17:03.9799600", timestamp)
		}
	}
	c.Due = at.Sub(traceEpoch)
	if c.Input, err = strconv.Atoi(strings.TrimSpace(input)); err != nil {
		return c, fmt.Errorf("%q is not a number of tokens", input)
	}
	if c.Output, err = strconv.Atoi(strings.TrimSpace(output)); err != nil {
		return c, fmt.Errorf("%q is not a number of tokens", output)
	}
	return c, c.plausible()
}

func (c *Call) plausible() error {
	if c.Input < 0 || c.Input > maxTokens || c.Output < 0 || c.Output > maxTokens {
		return fmt.Errorf("%d input and %d output tokens cannot be", c.Input, c.Output)
	}
	return nil
}

// Calls implements Source. A trace is not random: every round replays the same part of it.
func (t *Trace) Calls(_ *rand.Rand, bound Bound) (all []Call) {
	for _, c := range t.calls {
		due := time.Duration(float64(c.Due-t.Start) / t.Speed)
		if len(all) == bound.Requests || due >= bound.Span {
			break
		}
		if due < 0 {
			continue
		}
		c.Due = due
		c.Input, c.Output = scaled(c.Input, t.Tokens), scaled(c.Output, t.Tokens)
		c.BlockTokens = scaled(c.BlockTokens, t.Tokens)
		if t.MaxInput == 0 || c.Input <= t.MaxInput {
			all = append(all, c)
		}
	}
	return all
}

// scaled multiplies a length, which stays at least one token: an engine refuses an empty prompt.
func scaled(tokens int, factor float64) int { return max(1, int(math.Round(float64(tokens)*factor))) }
