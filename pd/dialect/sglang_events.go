package dialect

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// EventsPath implements EventTeller.
func (*sglang) EventsPath() string { return "/server_info" }

// eventSource is where a data-parallel rank publishes KV events, in vLLM's words.
type eventSource struct {
	Enabled   bool   `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`
	Endpoint  string `json:"endpoint"`
	Replay    string `json:"replay_endpoint,omitempty"`
	Topic     string `json:"topic"`
}

// maxEventRanks bounds the ranks of which an engine tells.
const maxEventRanks = 1024

// EventSources implements EventTeller. Each rank has the ports behind those of the one before it. They are at any address of the pod: an
// engine that publishes elsewhere connects there itself.
func (*sglang) EventSources(answer []byte) ([]byte, error) {
	var info struct {
		Events *struct {
			Publisher string `json:"publisher"`
			Port      int    `json:"endpoint_port_base"`
			Replay    int    `json:"replay_endpoint_port_base"`
			Topic     string `json:"topic"`
			Ranks     int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return nil, fmt.Errorf("reading its /server_info: %w", err)
	}
	e, sources := info.Events, map[string]eventSource{}
	if e == nil {
		return json.Marshal(sources)
	}
	if e.Ranks > maxEventRanks {
		return nil, fmt.Errorf("its /server_info tells of KV events of %d ranks", e.Ranks)
	}
	for rank := range max(e.Ranks, 1) {
		s := eventSource{Enabled: true, Publisher: e.Publisher, Endpoint: fmt.Sprintf("tcp://*:%d", e.Port+rank), Topic: e.Topic}
		if e.Replay > 0 {
			s.Replay = fmt.Sprintf("tcp://*:%d", e.Replay+rank)
		}
		sources[strconv.Itoa(rank)] = s
	}
	return json.Marshal(sources)
}
