package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/web"
)

func (h *handler) serveHealth(c *call) {
	select {
	case <-h.engine.Done():
		c.Write(http.StatusServiceUnavailable, nil)
	default:
		c.Write(http.StatusOK, nil)
	}
}

func (h *handler) serveVersion(c *call) {
	c.JSON(http.StatusOK, struct {
		Version string `json:"version"`
	}{sim.Version})
}

// serveLoad reports 0, as the real engine does unless it was started with load tracking.
func (h *handler) serveLoad(c *call) {
	c.JSON(http.StatusOK, struct {
		ServerLoad int `json:"server_load"`
	}{})
}

// serveEventSources answers with an empty object: this engine publishes no KV events.
// eventSource is where one rank publishes KV events.
type eventSource struct {
	Enabled      bool   `json:"enable_kv_cache_events"`
	Publisher    string `json:"publisher"`
	Endpoint     string `json:"endpoint"`
	Replay       any    `json:"replay_endpoint"` // null = none
	BufferSteps  int    `json:"buffer_steps"`
	HWM          int    `json:"hwm"`
	MaxQueueSize int    `json:"max_queue_size"`
	Topic        string `json:"topic"`
}

// serveEventSources names the sockets by their addresses, where the real engine says what it was told, such as tcp://*:5557.
func (h *handler) serveEventSources(c *call) {
	sources := map[string]eventSource{}
	if publish, replay := h.engine.EventAddresses(); publish != "" {
		s := eventSource{Enabled: true, Publisher: "zmq", Endpoint: "tcp://" + publish, BufferSteps: sim.KeptMessages, HWM: 100000,
			MaxQueueSize: 100000, Topic: h.engine.Config().Events.Topic}
		if replay != "" {
			s.Replay = "tcp://" + replay
		}
		sources["0"] = s
	}
	c.JSON(http.StatusOK, sources)
}

func (h *handler) serveScaleOut(c *call) {
	c.fail(&apiError{Message: "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.", Type: "PermissionDeniedError", Code: http.StatusForbidden})
}

func (h *handler) serveResetPrefixCache(c *call) {
	h.engine.ResetPrefixCache()
	c.JSON(http.StatusOK, struct {
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

func (h *handler) serveModels(c *call) {
	now := time.Now().Unix()
	c.JSON(http.StatusOK, struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", []modelCard{{
		ID: h.cfg.ServedModelName, Object: "model", Created: now, OwnedBy: "vllm", Root: h.cfg.Model.Name, MaxModelLen: h.cfg.MaxModelLen,
		Permission: []modelPermission{{ID: "modelperm-" + sim.RandomHex(8), Object: "model_permission", Created: now,
			AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*"}},
	}}})
}

func (h *handler) serveMetrics(c *call) {
	c.W.Header().Set("Content-Type", metrics.VLLMContentType)
	c.Write(http.StatusOK, h.engine.MetricsPage())
}

// addLoadHeader adds the ORCA report to a whole answer, if the request asks for it.
func (h *handler) addLoadHeader(c *call) {
	format := c.R.Header.Get("Endpoint-Load-Metrics-Format")
	if format != "TEXT" && format != "JSON" {
		return
	}
	l := h.engine.Load()
	waiting, usage := metrics.FormatFloat(float64(l.Waiting+l.Loading)), metrics.FormatFloat(l.CacheUsage)
	report := fmt.Sprintf("TEXT named_metrics.num_requests_waiting=%s, named_metrics.kv_cache_usage_perc=%s", waiting, usage)
	if format == "JSON" {
		report = fmt.Sprintf(`JSON {"named_metrics": {"num_requests_waiting": %s, "kv_cache_usage_perc": %s}}`, waiting, usage)
	}
	c.W.Header().Set("Endpoint-Load-Metrics", report)
}

// tokenization is the answer of /tokenize.
type tokenization struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int    `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

func (h *handler) serveTokenize(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	var tokens []int
	if _, chat := f.Get("messages"); chat {
		tokens = h.cfg.Model.Tokenizer().Chat(web.ReadMessages(f))
	} else {
		if _, ok := f.Require("prompt"); !ok {
			f.Require("messages")
		}
		tokens = h.cfg.Model.Tokenizer().Split(f.Text("prompt", ""))
	}
	name, names := f.Text("model", ""), f.Boolean("return_token_strs")
	err := problemsOf(f)
	if err == nil && name != "" && name != h.cfg.ServedModelName {
		err = unknownModel(name, h.cfg.ServedModelName)
	}
	if err != nil {
		c.fail(err)
		return
	}
	t := tokenization{Count: len(tokens), MaxModelLen: h.cfg.MaxModelLen, Tokens: tokens}
	if names {
		for _, token := range tokens {
			t.TokenStrs = append(t.TokenStrs, model.TokenName(token))
		}
	}
	c.JSON(http.StatusOK, t)
}

func (h *handler) serveDetokenize(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	f.Require("tokens")
	tokens := f.Integers("tokens")
	if err := problemsOf(f); err != nil {
		c.fail(err)
		return
	}
	c.JSON(http.StatusOK, struct {
		Prompt string `json:"prompt"`
	}{model.Join(tokens)})
}
