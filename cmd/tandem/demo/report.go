package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
)

// report is the verdict on a run.
type report struct {
	Promises   []promise
	rows       []exchange
	blockBytes int64
}

// promise is one line of the proof.
type promise struct {
	Name  string `json:"promise"`
	Kept  bool   `json:"ok"`
	Found string `json:"found"`
}

func (r *report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return r.writeJSON(w)
	}
	_, err := io.WriteString(w, r.text())
	return err
}

// columns are the headings of the table; the first two are set left, numbers right.
var columns = []string{"request", "decision", "prompt", "recv", "prefill", "handoff", "first", "decode", "total", "KV KiB", "same"}

const leftColumns = 2

// text is a table that fits into 100 columns, and the proof.
func (r *report) text() string {
	table := [][]string{columns}
	for i := range r.rows {
		table = append(table, r.rows[i].cells())
	}
	var b strings.Builder
	writeTable(&b, table)
	b.WriteString("prompt in tokens, recv to total in ms; same tokens as from the undisturbed engine; sse: streamed\n\n")
	for i := range r.rows {
		if err := r.rows[i].failure; err != nil {
			fmt.Fprintf(&b, "request %d: %v\n", r.rows[i].number, err)
		}
	}
	for _, p := range r.Promises {
		verdict := "ok"
		if !p.Kept {
			verdict = "FAILED"
		}
		fmt.Fprintf(&b, "%-6s  %s: %s\n", verdict, p.Name, p.Found)
	}
	return b.String()
}

func writeTable(b *strings.Builder, table [][]string) {
	widths := make([]int, len(columns))
	for _, row := range table {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range table {
		for i, cell := range row {
			if i < leftColumns {
				fmt.Fprintf(b, "%-*s ", widths[i], cell)
			} else {
				fmt.Fprintf(b, " %*s", widths[i], cell)
			}
		}
		b.WriteString("\n")
	}
}

// cells is the row of a request, as many cells as there are columns.
func (x *exchange) cells() []string {
	name := strconv.Itoa(x.number) + " " + x.api.String()
	if x.stream {
		name += " sse"
	}
	row := []string{name, x.happened(), strconv.Itoa(len(x.reference.prompt))}
	for ph := range pd.Phase(pd.PhaseCount) {
		cell := "-"
		if d, ok := x.phases.Get(ph); ok {
			cell = millis(d)
		}
		row = append(row, cell)
	}
	same := "NO"
	if x.equal() {
		same = "yes"
	}
	return append(row, millis(x.took), strconv.FormatInt(x.kvBytes/1024, 10), same)
}

func (x *exchange) happened() string {
	if x.failure != nil {
		return "failed"
	}
	return x.decision.Verdict.String() + " " + string(x.decision.Reason)
}

func millis(d time.Duration) string { return strconv.FormatFloat(inMillis(d), 'f', 1, 64) }

// inMillis is d in milliseconds, with the microseconds that Server-Timing has.
func inMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// jsonRow is a request in the JSON report; times in milliseconds.
type jsonRow struct {
	Request       int                `json:"request"`
	API           string             `json:"api"`
	Stream        bool               `json:"stream"`
	Plan          string             `json:"plan"`
	Decision      string             `json:"decision,omitempty"`
	Phases        map[string]float64 `json:"phases_ms"`
	Total         float64            `json:"total_ms"`
	PromptTokens  int                `json:"prompt_tokens"`
	Tokens        []int              `json:"token_ids"`
	Reference     []int              `json:"reference_token_ids"`
	KVBytes       int64              `json:"kv_bytes"`
	WantedKVBytes int64              `json:"kv_bytes_expected"`
	Error         string             `json:"error,omitempty"`
}

func (r *report) writeJSON(w io.Writer) error {
	rows := make([]jsonRow, len(r.rows))
	for i := range r.rows {
		rows[i] = r.rows[i].json(r.blockBytes)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		OK       bool      `json:"ok"`
		Requests []jsonRow `json:"requests"`
		Promises []promise `json:"promises"`
	}{r.err() == nil, rows, r.Promises})
}

func (x *exchange) json(blockBytes int64) jsonRow {
	row := jsonRow{
		Request: x.number, API: x.api.String(), Stream: x.stream, Plan: x.plan().String(),
		Phases: map[string]float64{}, Total: inMillis(x.took), PromptTokens: len(x.reference.prompt),
		Tokens: x.generated, Reference: x.reference.generated, KVBytes: x.kvBytes, WantedKVBytes: x.wantKV(blockBytes),
	}
	if x.failure != nil {
		row.Error = x.failure.Error()
		return row
	}
	row.Decision = x.decision.String()
	for ph := range pd.Phase(pd.PhaseCount) {
		if d, ok := x.phases.Get(ph); ok {
			row.Phases[ph.String()] = inMillis(d)
		}
	}
	return row
}
