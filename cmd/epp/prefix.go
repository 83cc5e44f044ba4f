package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/kvfeed"
)

// listener is a plugin that goes by KV events.
type listener interface {
	Events() (producer string, feed *kvfeed.Feed)
}

// debugPrefix shows what engines have told about their KV caches, and how it is known.
func (p *picker) debugPrefix(w http.ResponseWriter, _ *http.Request) {
	states := map[string]kvfeed.State{}
	for _, l := range config.Of[listener](p.inUse().built) {
		producer, feed := l.Events()
		states[producer] = feed.State()
	}
	writeJSON(w, map[string]any{"producers": states})
}

// prompt is the body of POST /debug/prefix.
type prompt struct {
	IDs   []uint32 `json:"ids"`
	Model string   `json:"model"`
	Salt  string   `json:"cache_salt"`
}

// maxPrompt is the largest body of POST /debug/prefix (bytes): some two million token ids.
const maxPrompt = 16 << 20

// debugPrompt shows how much of a prompt each endpoint holds. The prompt is given as token ids.
func (p *picker) debugPrompt(w http.ResponseWriter, r *http.Request) {
	var asked prompt
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPrompt))
	in.DisallowUnknownFields()
	if err := in.Decode(&asked); err != nil {
		http.Error(w, fmt.Sprintf("reading the prompt: %v; send {\"ids\":[1,2,…],\"model\":\"…\",\"cache_salt\":\"…\"}", err), http.StatusBadRequest)
		return
	}
	if len(asked.IDs) == 0 {
		http.Error(w, "the prompt has no ids: send its token ids as {\"ids\":[1,2,…]}", http.StatusBadRequest)
		return
	}
	held := map[string][]kvfeed.Held{}
	for _, l := range config.Of[listener](p.inUse().built) {
		producer, feed := l.Events()
		held[producer] = feed.Holds(asked.Model, epp.Prompt{Tokens: len(asked.IDs), IDs: asked.IDs, Salt: asked.Salt})
	}
	writeJSON(w, map[string]any{"tokens": len(asked.IDs), "producers": held})
}
