package dialect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// Alone is whether an engine serves requests that have no hand-off.
type Alone uint8

const (
	// AloneUnknown: the engine has not shown it.
	AloneUnknown Alone = iota
	// ServesAlone: it computes their prompts.
	ServesAlone
	// NeverAlone: it takes every prompt for one whose KV cache comes, and answers from memory that no engine has written to.
	NeverAlone
)

// Post sends a body to an engine as JSON. The error says that no answer came.
type Post func(ctx context.Context, path string, body []byte) (status int, answer []byte, err error)

// TestAlone finds out whether a decode engine serves requests alone, whatever its protocol: a sidecar of another protocol has to know it, too.
// It asks the engine's pages, and has an engine of vLLM whose pages leave it open answer a short request. The error
// wraps ErrWrongProtocol if the result shows what to set: it is for a sidecar that is set to something else. Any other error says that the
// engine has not answered.
func TestAlone(ctx context.Context, get Get, post Post) (Alone, error) {
	engine, page, err := recognize(ctx, get)
	if err != nil {
		return AloneUnknown, err
	}
	switch engine {
	case VLLM:
		alone, err := testVLLM(ctx, page, get, post)
		if alone == NeverAlone {
			return alone, errReads
		}
		return alone, err
	case SGLang:
		return modeOf(ctx, (*sglang)(nil), get)
	}
	return AloneUnknown, nil
}

// Untold reports whether a decode engine that speaks the dialect may be one that serves no request alone without telling it. Engines of other
// dialects tell it, or the operator has told it.
func Untold(d Dialect) bool {
	m, ok := d.(Moded)
	if !ok {
		return true
	}
	if m.ModePath() != "" {
		return false
	}
	whole, err := m.Whole(nil)
	return whole && err == nil
}

// modeOf asks an engine whose page tells.
func modeOf(ctx context.Context, m Moded, get Get) (Alone, error) {
	status, page, err := get(ctx, m.ModePath())
	if err != nil || status != http.StatusOK {
		return AloneUnknown, err
	}
	whole, err := m.Whole(page)
	switch {
	case err != nil:
		return AloneUnknown, nil
	case whole:
		return ServesAlone, nil
	}
	return NeverAlone, nil
}

// errReads: vLLM's MoRIIOConnector with read_mode.
var errReads = fmt.Errorf("%w: the decode engine takes every prompt for one whose KV cache comes (MoRIIOConnector with read_mode), and serves none alone: set --kv-connector=moriio, without --moriio-write-mode",
	ErrWrongProtocol)

const (
	// alonePrompt is how many random letters the prompt has: enough for some dozens of tokens, and different each time, so that no cache
	// has them.
	alonePrompt = 256
	// alonePrefix begins the prompt, for a person who reads the log of an engine that logs prompts.
	alonePrefix = "tandem-alone-"
)

// testVLLM asks an engine for two tokens after a prompt that no cache has, and reads whether the engine says that it has computed the prompt:
// in the usage, if the engine shows cached tokens there (--enable-prompt-tokens-details), or else in the counter of computed tokens. vLLM
// counts a prompt with its first token, so that it is counted before the answer of two. Requests of others can only raise the counter.
// An engine whose page has the metrics of a connector that does not read without being told is not asked.
func testVLLM(ctx context.Context, page []byte, get Get, post Post) (Alone, error) {
	if hasFamily(page, nixlMetrics) || hasFamily(page, offloadingMetrics) {
		return ServesAlone, nil
	}
	model, err := firstModel(ctx, get)
	if err != nil || model == "" {
		return AloneUnknown, err
	}
	before, counts := computedTokens(page)
	ask, err := json.Marshal(map[string]any{"model": model, "prompt": alonePrefix + randomLetters(alonePrompt), "max_tokens": 2, "temperature": 0, "ignore_eos": true})
	if err != nil {
		return AloneUnknown, err
	}
	status, answer, err := post(ctx, pd.APICompletions.Path(), ask)
	if err != nil || status != http.StatusOK {
		return AloneUnknown, err
	}
	var told struct {
		Usage struct {
			Prompt  float64 `json:"prompt_tokens"`
			Details *struct {
				Cached *float64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(answer, &told); err != nil || told.Usage.Prompt < 2 {
		return AloneUnknown, nil
	}
	if d := told.Usage.Details; d != nil && d.Cached != nil {
		return aloneBy(told.Usage.Prompt-*d.Cached, told.Usage.Prompt), nil
	}
	if !counts {
		return AloneUnknown, nil
	}
	if _, page, err = recognize(ctx, get); err != nil {
		return AloneUnknown, err
	}
	after, counts := computedTokens(page)
	if !counts || after < before { // it was started anew meanwhile
		return AloneUnknown, nil
	}
	return aloneBy(after-before, told.Usage.Prompt), nil
}

// aloneBy tells by how many tokens of a prompt were computed. An engine that reads computes one.
func aloneBy(computed, prompt float64) Alone {
	if computed < prompt/2 {
		return NeverAlone
	}
	return ServesAlone
}

// randomLetters returns n letters, of which no tokenizer makes few tokens.
func randomLetters(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(rand.Text())
	}
	return b.String()[:n]
}

// firstModel returns the name of the first model of an engine; "" if the engine does not tell, as without its API key.
func firstModel(ctx context.Context, get Get) (string, error) {
	status, page, err := get(ctx, "/v1/models")
	if err != nil || status != http.StatusOK {
		return "", err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if json.Unmarshal(page, &list) != nil || len(list.Data) == 0 {
		return "", nil
	}
	return list.Data[0].ID, nil
}

// The series of vLLM's counters of prompt tokens that the engine has computed itself, one for each data-parallel rank.
var computedSeries, computedLabel = []byte(vllmSince + "_total{"), []byte(`source="local_compute"`)

// computedTokens sums these counters; ok is false if the page has none.
func computedTokens(page []byte) (sum float64, ok bool) {
	for line := range bytes.Lines(page) {
		if !bytes.HasPrefix(line, computedSeries) || !bytes.Contains(line, computedLabel) {
			continue
		}
		fields := bytes.Fields(line[bytes.LastIndexByte(line, '}')+1:])
		if len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseFloat(string(fields[0]), 64)
		if err != nil {
			continue
		}
		sum, ok = sum+n, true
	}
	return sum, ok
}
