package relay

import (
	"bytes"
	"strconv"

	"github.com/tandem-serving/tandem/pd/body"
)

// cachedTable finds the count of cached tokens, which decode reports wrongly unless prefill's count is handed over.
var cachedTable = body.NewTable(body.Want{Path: "usage.prompt_tokens_details.cached_tokens"})

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
	m, ok := scan.Find(0)
	if !ok || m.Kind != body.Number || m.Value.End < 0 {
		return answer
	}
	out := make([]byte, 0, len(answer)+20)
	out = append(out, answer[:m.Value.Start]...)
	out = strconv.AppendInt(out, cached, 10)
	return append(out, answer[m.Value.End:]...)
}

// correctEvent is correctUsage for the data of an event. It returns the whole event.
func correctEvent(e body.Event, cached int64) []byte {
	corrected := correctUsage(e.Data, true, cached)
	before, after, ok := bytes.Cut(e.Raw, e.Data)
	if !ok {
		return e.Raw // the data has several lines, which no engine that needs correcting sends
	}
	return bytes.Join([][]byte{before, corrected, after}, nil)
}
