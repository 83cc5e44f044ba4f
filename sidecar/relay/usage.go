package relay

import (
	"bytes"
	"strconv"

	"github.com/tandem-serving/tandem/pd/body"
)

// The members of cachedTable, besides the counts of cached tokens.
const (
	wInput = iota // input_tokens of messages, which leaves the cached tokens out
	wRead         // the cached tokens of messages
)

// cachedTable finds the count of cached tokens, which decode reports wrongly unless prefill's count is handed over.
var cachedTable = body.NewTable(
	body.Want{Path: "usage.input_tokens"},
	body.Want{Path: "usage.cache_read_input_tokens"},
	body.Want{Path: "usage.prompt_tokens_details.cached_tokens"},
	body.Want{Path: "usage.input_tokens_details.cached_tokens"},
	body.Want{Path: "response.usage.input_tokens_details.cached_tokens"}, // in the event that ends a stream of responses
)

// correctUsage replaces decode's count of cached tokens by prefill's. An answer without the count, for which the client did
// not ask, stays unchanged, as does a whole answer that is not valid JSON. If whole is false, answer is the beginning of one,
// and only the count must be complete.
func correctUsage(answer []byte, whole bool, cached int64) []byte {
	var scan body.Scanner
	scan.Reset(cachedTable, body.Limits{}, nil)
	if _, err := scan.Write(answer); err != nil {
		return answer
	}
	if whole && scan.Close() != nil {
		return answer
	}
	read, isMessage := count(answer, &scan, wRead)
	at, out := int64(0), make([]byte, 0, len(answer)+20)
	for _, m := range scan.Members() {
		is := cached
		if m.Want == wInput {
			input, ok := count(answer, &scan, wInput)
			if !ok || !isMessage {
				continue
			}
			is = max(0, input+read-cached)
		}
		if m.Kind != body.Number || m.Value.End < 0 {
			continue
		}
		out = append(out, answer[at:m.Value.Start]...)
		out = strconv.AppendInt(out, is, 10)
		at = m.Value.End
	}
	if at == 0 {
		return answer
	}
	return append(out, answer[at:]...)
}

// count returns a number of tokens. ok is false if it is missing, or is none.
func count(answer []byte, scan *body.Scanner, want int) (n int64, ok bool) {
	m, ok := scan.Find(want)
	if !ok || m.Kind != body.Number || m.Value.End < 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(answer[m.Value.Start:m.Value.End]), 10, 64)
	return n, err == nil
}

// replaceData returns the whole event with other data.
func replaceData(e body.Event, data []byte) []byte {
	before, after, ok := bytes.Cut(e.Raw, e.Data)
	if !ok {
		return e.Raw // the data has several lines, which no engine that needs correcting sends
	}
	return bytes.Join([][]byte{before, data, after}, nil)
}
