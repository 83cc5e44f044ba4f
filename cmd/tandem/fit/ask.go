package fit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/replay/engine"
)

// pageLimit bounds what is read of an engine's pages.
const pageLimit = promtext.Limit

// ask finds out what the engine says of itself, and adds it where the user has said nothing.
func (r *runner) ask(ctx context.Context) error {
	if err := r.askModel(ctx); err != nil {
		return err
	}
	page, err := r.engine.Get(ctx, "/metrics", pageLimit)
	if err != nil {
		return fmt.Errorf("reading its metrics page: %w", err)
	}
	metrics, err := promtext.Read(bytes.NewReader(page))
	if err != nil {
		return fmt.Errorf("reading its metrics page: %w", err)
	}
	said := engine.Settings{}
	switch {
	case metrics.Has("vllm:"):
		said = r.askVLLM(ctx, metrics)
	case metrics.Has("sglang:"):
		said = r.askSGLang(ctx, metrics)
	default:
		return errors.New("its metrics page is neither vLLM's nor SGLang's: is this the address of an engine, not of a gateway?")
	}
	s := &r.settings
	s.Scheduler = said.Scheduler
	for _, one := range []struct {
		to    *int
		said  int
		usual int
		flag  string
	}{
		{&s.BlockTokens, said.BlockTokens, 16, "length of a block"},
		{&s.KVTokens, said.KVTokens, 0, "--kv-tokens"},
		{&s.StepTokens, said.StepTokens, 2048, "--max-num-batched-tokens"},
		{&s.Sequences, said.Sequences, 256, "--max-num-seqs"},
	} {
		switch {
		case *one.to > 0:
		case one.said > 0:
			*one.to = one.said
		case one.usual == 0:
			return fmt.Errorf("it does not say how large its KV cache is: use %s", one.flag)
		default:
			*one.to = one.usual
			r.note("The engine does not tell its %s: %d is taken.", one.flag, one.usual)
		}
	}
	if r.length == 0 {
		r.length = s.KVTokens
	}
	return nil
}

// askModel asks for the model and its greatest length.
func (r *runner) askModel(ctx context.Context) error {
	text, err := r.engine.Get(ctx, "/v1/models", pageLimit)
	if err != nil {
		return fmt.Errorf("asking for its models: %w", err)
	}
	var list struct {
		Data []struct {
			ID     string
			Length int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Data) == 0 {
		return errors.New("asking for its models: the answer lists none")
	}
	for _, m := range list.Data {
		if m.ID == r.options.Model || r.options.Model == "" {
			r.engine.SetModel(m.ID)
			r.length = m.Length
			return nil
		}
	}
	return fmt.Errorf("it does not serve the model %s, but %s", r.options.Model, list.Data[0].ID)
}

func (r *runner) askVLLM(ctx context.Context, metrics promtext.Page) engine.Settings {
	said := engine.Settings{Scheduler: "vllm"}
	for _, labels := range metrics.Labels("vllm:cache_config_info") {
		blocks, _ := strconv.Atoi(labels["num_gpu_blocks"])
		said.BlockTokens, _ = strconv.Atoi(labels["block_size"])
		said.KVTokens = max(0, blocks-1) * said.BlockTokens // one is never used
	}
	var info struct { // in developer mode only
		Config struct {
			Scheduler struct {
				Tokens    int `json:"max_num_batched_tokens"`
				Sequences int `json:"max_num_seqs"`
			} `json:"scheduler_config"`
		} `json:"vllm_config"`
	}
	r.info(ctx, "/server_info?config_format=json", &info)
	said.StepTokens, said.Sequences = info.Config.Scheduler.Tokens, info.Config.Scheduler.Sequences
	return said
}

func (r *runner) askSGLang(ctx context.Context, metrics promtext.Page) engine.Settings {
	said := engine.Settings{Scheduler: "sglang"}
	for _, s := range metrics {
		switch s.Name {
		case "sglang:page_size":
			said.BlockTokens = int(s.Value)
		case "sglang:max_total_num_tokens":
			said.KVTokens = int(s.Value)
		}
	}
	var info struct {
		Page      int    `json:"page_size"`
		Total     int    `json:"max_total_tokens"`
		Chunk     int    `json:"chunked_prefill_size"`
		Sequences int    `json:"max_running_requests"`
		Mode      string `json:"disaggregation_mode"`
	}
	r.info(ctx, "/server_info", &info)
	if said.BlockTokens == 0 {
		said.BlockTokens = info.Page
	}
	if said.KVTokens == 0 {
		said.KVTokens = info.Total
	}
	said.StepTokens, said.Sequences = max(0, info.Chunk), info.Sequences
	if r.disaggregated = info.Mode; r.disaggregated == "null" {
		r.disaggregated = ""
	}
	return said
}

// info reads a page that not every engine shows.
func (r *runner) info(ctx context.Context, path string, into any) {
	text, err := r.engine.Get(ctx, path, pageLimit)
	if err == nil {
		_ = json.Unmarshal(text, into) // what cannot be read is not known
	}
}

// failed describes a probe that got no answer.
func failed(what string, f *client.Failure) error {
	if f.Unreachable {
		return fmt.Errorf("the engine cannot be reached any more: %w", f)
	}
	return fmt.Errorf("%s: %w", what, f)
}
