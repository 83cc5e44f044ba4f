package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// table is a format of comma-separated values with a heading.
type table struct {
	columns  []string // that the heading has, in any order and among others
	optional []string // "" where the heading lacks them
	call     func(r *reading, number int, v []string) (Call, error)
}

// tables are all such formats; the first whose columns a heading has counts.
var tables = []table{
	{[]string{"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, nil, azureCall},
	{[]string{"Timestamp", "Request tokens", "Response tokens"}, []string{"Session ID", "Elapsed time", "Log Type"}, burstCall},
	{[]string{"arrival_time_us", "input_tokens", "output_tokens"}, []string{"prefix_group", "prefix_length", "server_input_tokens", "session_id", "last_chunk_time_us",
		"slo_class", "tenant_id", "adapter"}, blisCall},
}

// table reads comma-separated values.
func (r *reading) table(from io.Reader) error {
	rows := csv.NewReader(from)
	rows.ReuseRecord = true
	head, err := rows.Read()
	if err != nil {
		return err
	}
	t, at, err := tableOf(head)
	if err != nil {
		return err
	}
	values := make([]string, len(at))
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			if !errors.Is(err, csv.ErrFieldCount) {
				return err
			}
			if err := r.unusable(err); err != nil { // it names the line
				return err
			}
			continue
		}
		for i, column := range at {
			values[i] = ""
			if column >= 0 {
				values[i] = strings.TrimSpace(row[column])
			}
		}
		number, _ := rows.FieldPos(0)
		c, err := t.call(r, number, values)
		if err := r.add("line", number, c, err); err != nil {
			return err
		}
	}
}

// tableOf returns the format of a heading, and where its columns are, -1 for those that are missing.
func tableOf(head []string) (t table, at []int, err error) {
	head = slices.Clone(head)
	for i := range head {
		head[i] = strings.TrimSpace(strings.TrimPrefix(head[i], "\ufeff"))
	}
	var known []string
	for _, t := range tables {
		at = at[:0]
		for _, name := range slices.Concat(t.columns, t.optional) {
			at = append(at, slices.Index(head, name))
		}
		if !slices.Contains(at[:len(t.columns)], -1) {
			return t, at, nil
		}
		known = append(known, strings.Join(t.columns, ", "))
	}
	return t, nil, fmt.Errorf("it is neither JSON lines (timestamp, input_length, output_length, hash_ids), nor a result of vllm bench serve, nor CSV with the columns %s",
		strings.Join(known, "; or "))
}

// tokens reads numbers of tokens.
func tokens(texts ...string) (all []int, err error) {
	for _, s := range texts {
		n, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number of tokens", s)
		}
		all = append(all, n)
	}
	return all, nil
}

// traceEpoch is subtracted from dates, so that differences fit into a duration.
var traceEpoch = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)

// azureCall reads a row of the Azure LLM inference traces.
func azureCall(_ *reading, _ int, v []string) (Call, error) {
	at, err := time.Parse("2006-01-02 15:04:05.999999999", v[0])
	if err != nil { // the traces of 2024 have a time zone
		if at, err = time.Parse("2006-01-02 15:04:05.999999999Z07:00", v[0]); err != nil {
			return Call{}, fmt.Errorf("%q is not a date and time such as 2023-11-16 18:17:03.9799600", v[0])
		}
	}
	n, err := tokens(v[1], v[2])
	if err != nil {
		return Call{}, err
	}
	return Call{Due: at.Sub(traceEpoch), Input: n[0], Output: n[1], BlockTokens: 1}, nil
}

// span reads a time in units.
func span(text string, unit time.Duration) (time.Duration, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v <= math.MaxInt64/float64(unit)) {
		return 0, fmt.Errorf("%q is not a time", text)
	}
	return time.Duration(v * float64(unit)), nil
}

// burstCall reads a row of BurstGPT. Its times are in seconds; how long answers took and to which session they belong is not in all files.
func burstCall(r *reading, _ int, v []string) (c Call, err error) {
	n, err := tokens(v[1], v[2])
	if err != nil {
		return c, err
	}
	c = Call{Input: n[0], Output: n[1], BlockTokens: 1, session: r.session(v[3])}
	if c.Due, err = span(v[0], time.Second); err != nil {
		return c, err
	}
	if v[4] != "" {
		if c.Think, err = span(v[4], time.Second); err != nil {
			return c, err
		}
	}
	if v[5] != "" {
		c.Class = r.class(Class{Name: strings.Clone(v[5])})
	}
	return c, nil
}

// blisCall reads a row of the data of a BLIS TraceV2. The tokens of a prefix come in addition to those of the input; without a prefix, what
// the server has counted includes its chat template.
func blisCall(r *reading, number int, v []string) (c Call, err error) {
	for i := 4; i <= 5; i++ {
		if v[i] == "" {
			v[i] = "0"
		}
	}
	n, err := tokens(v[1], v[2], v[4], v[5])
	if err != nil {
		return c, err
	}
	input, output, prefix, counted := n[0], n[1], n[2], n[3]
	if input < 0 || prefix < 0 {
		return c, fmt.Errorf("%d input tokens behind a prefix of %d cannot be", input, prefix)
	}
	c = Call{Input: input, Output: output, BlockTokens: PartTokens, session: r.session(v[6])}
	if c.Due, err = span(v[0], time.Microsecond); err != nil {
		return c, err
	}
	if ended, err := span(v[7], time.Microsecond); err == nil && ended > c.Due {
		c.Think = ended - c.Due
	}
	switch {
	case v[3] != "" && prefix > 0:
		group := fnv.New64a()
		group.Write([]byte(v[3]))
		c.Input += prefix
		c.Streams = []Stream{{group.Sum64(), prefix}, {streamID(sessionStream, number), 0}}
	case v[3] == "" && counted > 0:
		c.Input = counted
	}
	if v[8] != "" || v[9] != "" || v[10] != "" {
		c.Class = r.class(Class{Name: strings.Clone(v[8]), Flow: strings.Clone(v[9]), Model: strings.Clone(v[10])})
	}
	return c, nil
}
