package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Measured is what was measured of the requests of a trace, in ms and in order.
type Measured struct {
	TTFT, ITL, TPOT []float64
}

// maxRecord is the longest line of records, in bytes: an answer of 100,000 tokens has a megabyte of gaps.
const maxRecord = 16 << 20

// isRecords reports whether a file looks like the records of tandem load.
func isRecords(beginning []byte) bool {
	return beginning[0] == '{' && bytes.Contains(beginning, []byte(`"due_ms"`)) && bytes.Contains(beginning, []byte(`"late_ms"`))
}

// records reads what tandem load writes with --records: the requests of the first round of the first side.
func (r *reading) records(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, maxRecord)
	type round struct {
		Point, Side string
		Round       int
	}
	var first round
	others := 0
	r.measured = &Measured{}
	for number := 1; lines.Scan(); number++ {
		var row struct {
			round
			Due     float64 `json:"due_ms"`
			Unsent  bool
			TTFT    float64   `json:"ttft_ms"`
			E2E     float64   `json:"e2e_ms"`
			ITL     []float64 `json:"itl_ms"`
			Input   int       `json:"input_tokens"`
			Output  int       `json:"output_tokens"`
			Failure string
		}
		err := json.Unmarshal(lines.Bytes(), &row)
		switch {
		case err != nil:
		case row.Unsent || row.Failure != "":
			err = errors.New("it was not answered")
		case row.TTFT == 0:
			err = errors.New("its answer was not streamed")
		case first == round{}:
			first = row.round
		case row.round != first:
			others++
			continue
		}
		before := len(r.calls)
		if err := r.add("line", number, Call{Due: time.Duration(row.Due * 1e6), Input: row.Input, Output: row.Output, BlockTokens: 1}, err); err != nil {
			return err
		}
		if len(r.calls) == before {
			continue
		}
		r.measured.TTFT = append(r.measured.TTFT, row.TTFT)
		r.measured.ITL = append(r.measured.ITL, row.ITL...)
		if row.Output > 1 {
			r.measured.TPOT = append(r.measured.TPOT, (row.E2E-row.TTFT)/float64(row.Output-1))
		}
	}
	for _, all := range [][]float64{r.measured.TTFT, r.measured.ITL, r.measured.TPOT} {
		slices.Sort(all)
	}
	if others > 0 {
		r.note = fmt.Sprintf("only the first round of the first side is replayed: %d requests are of others", others)
	}
	return lines.Err()
}
