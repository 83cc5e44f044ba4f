package api

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
)

// metricsContentType is the content type of the metrics page.
const metricsContentType = "text/plain; version=0.0.4; charset=utf-8"

// serveHealth answers after the time that a request of one token takes, which the real engine runs.
func (h *handler) serveHealth(c *call) {
	if !h.engine.Draining() {
		t := time.NewTimer(h.cfg.Times.Health)
		defer t.Stop()
		select {
		case <-t.C:
		case <-h.engine.Crashed():
			h.hang(c.R)
		case <-c.Ctx().Done():
			return
		}
	}
	h.serveReady(c)
}

func (h *handler) serveReady(c *call) {
	if h.engine.Draining() {
		c.Write(http.StatusServiceUnavailable, nil)
		return
	}
	c.Write(http.StatusOK, nil)
}

func (h *handler) servePing(c *call) { c.Write(http.StatusOK, nil) }

// serveAbort ends requests by the beginning of their ids. It says nothing of whether there were any.
func (h *handler) serveAbort(c *call) {
	var body struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if len(c.Body) > 0 && json.Unmarshal(c.Body, &body) != nil {
		c.fail(c.schemaError("1 validation error:\n  {'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to extract fields from'}"))
		return
	}
	switch {
	case body.All:
		h.engine.Abort("")
	case body.RID != "":
		h.engine.Abort(body.RID)
	}
	c.Write(http.StatusOK, nil)
}

func (h *handler) serveFlush(c *call) {
	if !h.engine.Flush() {
		c.Write(http.StatusBadRequest, []byte("Cache not flushed because there are pending requests.\n"))
		return
	}
	c.W.Header()["Content-Type"] = nil // net/http would guess one
	c.Write(http.StatusOK, []byte("Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"))
}

func (h *handler) serveMetrics(c *call) {
	c.W.Header().Set("Content-Type", metricsContentType)
	c.Write(http.StatusOK, h.engine.MetricsPage())
}

func (h *handler) serveModels(c *call) {
	name := h.cfg.ServedModelName
	c.JSON(http.StatusOK, pyjson.Object{member("object", "list"), member("data", []any{pyjson.Object{
		member("id", name), member("object", "model"), member("created", time.Now().Unix()), member("owned_by", "sglang"), member("root", name),
		member("parent", nil), member("max_model_len", h.cfg.ContextLength),
	}})})
}

// serveModelInfo says what the engine serves. The member embedding has only what says whether there is a prefix cache.
func (h *handler) serveModelInfo(c *call) {
	path := h.cfg.Model.Name
	c.JSON(http.StatusOK, pyjson.Object{
		member("model_path", path), member("served_model_name", h.cfg.ServedModelName), member("tokenizer_path", path), member("is_generation", true),
		member("preferred_sampling_params", nil), member("weight_version", "default"), member("load_format", "auto"), member("reasoning_parser", nil),
		member("tool_call_parser", nil), member("disaggregation_mode", h.cfg.Mode), member("has_image_understanding", false),
		member("has_audio_understanding", false), member("model_type", "llama"), member("architectures", []string{"LlamaForCausalLM"}),
		member("embedding", pyjson.Object{member("enabled", false), member("cache", pyjson.Object{member("kv_cache_disabled", false),
			member("radix_cache_disabled", h.noPrefixes()), member("chunked_prefill_disabled", false)})}),
	})
}

// noPrefixes reports whether the engine has no prefix cache.
func (h *handler) noPrefixes() bool { return h.cfg.Mode == sglang.Decode && !h.cfg.DecodeRadixCache }

// serveServerInfo says how the engine was started: of the real engine's flags, those that this one has, and some that programs look
// for.
func (h *handler) serveServerInfo(c *call) {
	cfg := &h.cfg
	balance := "round_robin"
	if cfg.Mode == sglang.Prefill {
		balance = "follow_bootstrap_room"
	}
	c.JSON(http.StatusOK, pyjson.Object{
		member("model_path", cfg.Model.Name), member("tokenizer_path", cfg.Model.Name), member("context_length", cfg.ContextLength),
		member("kv_cache_dtype", "auto"), member("max_running_requests", cfg.MaxRunningRequests), member("max_total_tokens", cfg.MaxTotalTokens),
		member("chunked_prefill_size", cfg.ChunkedPrefillSize), member("page_size", cfg.PageSize), member("disable_radix_cache", h.noPrefixes()),
		member("tp_size", 1), member("pp_size", 1), member("dp_size", cfg.Ranks), member("load_balance_method", balance),
		member("enable_dp_attention", false), member("host", h.host()), member("port", cfg.Port), member("api_key", nil),
		member("served_model_name", cfg.ServedModelName), member("enable_cache_report", true), member("enable_metrics", true), member("kv_events_config", nil),
		member("disaggregation_mode", cfg.Mode), member("disaggregation_transfer_backend", "nixl"),
		member("disaggregation_bootstrap_port", h.bootstrapPort()), member("disaggregation_decode_enable_radix_cache", cfg.DecodeRadixCache),
		member("random_seed", h.seed), member("kv_events", nil), member("version", sglang.Version), member("frontend", "sim"),
	})
}

func (h *handler) host() string {
	host, _, _ := net.SplitHostPort(h.engine.Bootstrap())
	return host
}

func (h *handler) bootstrapPort() int {
	_, port, _ := net.SplitHostPort(h.engine.Bootstrap())
	n, _ := strconv.Atoi(port)
	return n
}

// serveLoads says how busy each rank is at this moment.
func (h *handler) serveLoads(c *call) {
	now := time.Now()
	loads := []any{}
	for _, l := range h.engine.Loads() {
		loads = append(loads, pyjson.Object{
			member("timestamp", seconds(now)), member("dp_rank", l.Rank), member("num_running_reqs", l.Running), member("num_waiting_reqs", l.Waiting),
			member("num_waiting_uncached_tokens", 0), member("num_used_tokens", l.Used), member("num_total_tokens", l.Used),
			member("num_active_tokens", l.Used), member("num_prealloc_ready_tokens", 0), member("max_total_num_tokens", l.Total),
			member("max_running_requests", h.cfg.MaxRunningRequests), member("token_usage", pyjson.Float(l.Usage(4))), member("gen_throughput", pyjson.Float(0)),
			member("cache_hit_rate", pyjson.Float(0)), member("utilization", pyjson.Float(0)), member("total_prefill_uncached_tokens", 0),
			member("total_prefill_busy_us", 0), member("decode_moments", nil),
			member("memory", pyjson.Object{member("weight_gb", pyjson.Float(0)), member("kv_cache_gb", pyjson.Float(0)), member("graph_gb", pyjson.Float(0)),
				member("token_capacity", l.Total)}),
			member("disaggregation", pyjson.Object{member("mode", h.cfg.Mode), member("prefill_bootstrap_queue_reqs", l.Bootstrap),
				member("prefill_inflight_queue_reqs", l.Inflight), member("decode_prealloc_queue_reqs", l.Prealloc),
				member("decode_transfer_queue_reqs", l.Transfer), member("decode_retracted_queue_reqs", 0), member("kv_transfer_speed_gb_s", pyjson.Float(0)),
				member("kv_transfer_latency_ms", pyjson.Float(0))}),
			member("queues", pyjson.Object{member("waiting", l.Waiting-l.Bootstrap-l.Inflight-l.Prealloc-l.Transfer), member("grammar", 0), member("paused", 0),
				member("retracted", 0), member("prealloc_ready", 0)}),
		})
	}
	c.JSON(http.StatusOK, pyjson.Object{member("timestamp", now.UTC().Format("2006-01-02T15:04:05.000000+00:00")), member("version", sglang.Version),
		member("accelerator", nil), member("num_accelerators", 1), member("loads", loads)})
}
