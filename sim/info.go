package sim

import (
	"fmt"
	"net/http"
	"time"
)

func (e *Engine) serveHealth(c *call) {
	select {
	case <-e.stopped:
		c.write(http.StatusServiceUnavailable, nil)
	default:
		c.write(http.StatusOK, nil)
	}
}

func (e *Engine) serveVersion(c *call) {
	c.json(http.StatusOK, struct {
		Version string `json:"version"`
	}{engineVersion})
}

// serveLoad reports 0, as the engine does unless it was started to track its load.
func (e *Engine) serveLoad(c *call) {
	c.json(http.StatusOK, struct {
		ServerLoad int `json:"server_load"`
	}{})
}

// serveEventSources is empty: this engine publishes no KV events.
func (e *Engine) serveEventSources(c *call) { c.json(http.StatusOK, struct{}{}) }

func (e *Engine) serveScaleOut(c *call) {
	c.fail(&apiError{Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", Type: "PermissionDeniedError", Code: http.StatusForbidden})
}

func (e *Engine) serveResetPrefixCache(c *call) {
	e.call(e.pool.forget)
	c.json(http.StatusOK, struct {
		Success bool `json:"success"`
	}{true})
}

type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      *string           `json:"parent"`
	MaxModelLen int               `json:"max_model_len"`
	Permission  []modelPermission `json:"permission"`
}

type modelPermission struct {
	ID                 string  `json:"id"`
	Object             string  `json:"object"`
	Created            int64   `json:"created"`
	AllowCreateEngine  bool    `json:"allow_create_engine"`
	AllowSampling      bool    `json:"allow_sampling"`
	AllowLogprobs      bool    `json:"allow_logprobs"`
	AllowSearchIndices bool    `json:"allow_search_indices"`
	AllowView          bool    `json:"allow_view"`
	AllowFineTuning    bool    `json:"allow_fine_tuning"`
	Organization       string  `json:"organization"`
	Group              *string `json:"group"`
	IsBlocking         bool    `json:"is_blocking"`
}

func (e *Engine) serveModels(c *call) {
	now := time.Now().Unix()
	c.json(http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", []modelCard{{
		ID: e.cfg.ServedModelName, Object: "model", Created: now, OwnedBy: "vllm", Root: e.cfg.Model.Name, MaxModelLen: e.cfg.MaxModelLen,
		Permission: []modelPermission{{ID: "modelperm-" + randomHex(8), Object: "model_permission", Created: now,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*"}},
	}}})
}

func (e *Engine) serveMetrics(c *call) {
	s := e.snapshot()
	e.metrics.set(requestsRunning, "", float64(s.running))
	e.metrics.set(requestsWaiting, "", float64(s.capacity+s.deferred))
	e.metrics.set(waitingByReason, "capacity", float64(s.capacity))
	e.metrics.set(waitingByReason, "deferred", float64(s.deferred))
	e.metrics.set(kvFetchByStage, "waiting_to_start", float64(s.toLoad))
	e.metrics.set(kvFetchByStage, "in_progress", float64(s.loading))
	e.metrics.set(kvFetchByStage, "completed_waiting", float64(s.loaded))
	e.metrics.set(kvCacheUsage, "", s.usage())
	c.w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	c.write(http.StatusOK, e.metrics.page())
}

// snapshot is the engine at one moment.
type snapshot struct {
	running, capacity, deferred int // sequences
	toLoad, loading, loaded     int // of the waiting ones, those with KV elsewhere
	total, used, pinned         int // blocks
	counts
}

func (s *snapshot) usage() float64 { return float64(s.used) / float64(s.total) }

func (e *Engine) snapshot() (snap snapshot) {
	e.call(func() {
		snap = snapshot{running: len(e.running), total: e.pool.total(), used: e.pool.used(), pinned: e.pool.pinned, counts: e.counts}
		for s := range e.live {
			switch s.load {
			case loadWanted:
				snap.toLoad++
			case loadRunning, loadStuck:
				snap.loading++
			case loaded:
				if s.computed < s.prompt { // it has not had its first step
					snap.loaded++
				}
			}
		}
		snap.deferred = snap.loading
		snap.capacity = len(e.waiting)
	})
	return snap
}

// addLoadHeader adds the ORCA report to a whole answer, if the request asks for it.
func (e *Engine) addLoadHeader(c *call) {
	format := c.r.Header.Get("Endpoint-Load-Metrics-Format")
	if format != "TEXT" && format != "JSON" {
		return
	}
	s := e.snapshot()
	waiting, usage := formatFloat(float64(s.capacity+s.deferred)), formatFloat(s.usage())
	report := fmt.Sprintf("TEXT named_metrics.num_requests_waiting=%s, named_metrics.kv_cache_usage_perc=%s", waiting, usage)
	if format == "JSON" {
		report = fmt.Sprintf(`JSON {"named_metrics": {"num_requests_waiting": %s, "kv_cache_usage_perc": %s}}`, waiting, usage)
	}
	c.w.Header().Set("Endpoint-Load-Metrics", report)
}

// tokenization is the answer of /tokenize.
type tokenization struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int    `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

func (e *Engine) serveTokenize(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	var tokens []int
	if _, chat := f.get("messages"); chat {
		tokens = e.tokenizer().chatTokens(readMessages(f))
	} else {
		if _, ok := f.require("prompt"); !ok {
			f.require("messages")
		}
		tokens = e.tokenizer().split(f.text("prompt", ""))
	}
	model, names := f.text("model", ""), f.boolean("return_token_strs")
	err := f.err()
	if err == nil && model != "" && model != e.cfg.ServedModelName {
		err = unknownModel(model, e.cfg.ServedModelName)
	}
	if err != nil {
		c.fail(err)
		return
	}
	t := tokenization{Count: len(tokens), MaxModelLen: e.cfg.MaxModelLen, Tokens: tokens}
	if names {
		for _, token := range tokens {
			t.TokenStrs = append(t.TokenStrs, tokenString(token))
		}
	}
	c.json(http.StatusOK, t)
}

func (e *Engine) serveDetokenize(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	f.require("tokens")
	tokens := f.integers("tokens")
	if err := f.err(); err != nil {
		c.fail(err)
		return
	}
	c.json(http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{joinTokens(tokens)})
}
