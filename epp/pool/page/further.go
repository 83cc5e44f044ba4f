package page

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/tandem-serving/tandem/epp"
)

// Models reads the list of models that an endpoint serves, in the form of OpenAI's /v1/models.
type Models struct{}

// Read reads the answer of an endpoint.
func (Models) Read(from io.Reader, _ *epp.Endpoint) (epp.Further, error) {
	var list struct {
		Data []epp.Model `json:"data"`
	}
	if err := json.NewDecoder(from).Decode(&list); err != nil {
		return epp.Further{}, fmt.Errorf("reading the list of models: %w", err)
	}
	if list.Data == nil {
		return epp.Further{}, errors.New("the answer has no list of models")
	}
	return epp.Further{Models: list.Data}, nil
}

// Attributes of GPU, by the names that llm-d gives them.
const (
	GPUProducer    = "dcgm-extractor"
	GPUUtilization = "GPUUtilization"
)

// The metric of NVIDIA's DCGM exporter that GPU reads, and the label with the pod to which it has assigned a GPU.
const (
	gpuFamily = "DCGM_FI_DEV_GPU_UTIL"
	podLabel  = "pod"
)

// GPU reads the utilization of an endpoint's GPUs from the page of a DCGM exporter: that of its busiest one, 0 to 1. Series with the
// label of another pod are those of other pods on the node.
type GPU struct{}

// Read reads the page of the exporter of an endpoint.
func (GPU) Read(from io.Reader, e *epp.Endpoint) (epp.Further, error) {
	busiest := math.Inf(-1)
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		rest, ok := bytes.CutPrefix(lines.Bytes(), []byte(gpuFamily))
		if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		s, ok := parseSeries(rest)
		if !ok {
			return epp.Further{}, fmt.Errorf("a series of %s cannot be read", gpuFamily)
		}
		if pod, labeled := label(s.labels, podLabel); !labeled || string(pod) == e.Pod {
			busiest = max(busiest, s.value)
		}
	}
	switch {
	case lines.Err() != nil:
		return epp.Further{}, fmt.Errorf("reading the GPU metrics: %w", lines.Err())
	case !(busiest >= 0 && busiest <= 100):
		return epp.Further{}, fmt.Errorf("the page has no utilization of a GPU of the pod %q", e.Pod)
	}
	return epp.Further{Attributes: epp.Attributes{{Producer: GPUProducer, Key: GPUUtilization, Value: busiest / 100}}}, nil
}
