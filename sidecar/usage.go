package sidecar

import (
	"bytes"
	"strconv"

	"github.com/tandem-serving/tandem/pd/body"
)

// cachedTable finds the count that decode gets wrong when prefill's engine does not hand its own over.
var cachedTable = body.NewTable(body.Want{Path: "usage.prompt_tokens_details.cached_tokens"})

// correctUsage replaces decode's count of cached tokens by prefill's. An answer without the count stays as it is: it was
// not asked for. So does a whole one that is not JSON to its end; of one that is not whole, the count alone has to be there.
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

// correctEvent does the same to the data of an event.
func correctEvent(e body.Event, cached int64) []byte {
	corrected := correctUsage(e.Data, true, cached)
	before, after, ok := bytes.Cut(e.Raw, e.Data)
	if !ok {
		return e.Raw // data of several lines: no engine that needs this sends it
	}
	return bytes.Join([][]byte{before, corrected, after}, nil)
}
