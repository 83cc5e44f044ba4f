package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// ErrWrongProtocol says that an engine speaks another protocol than the dialect. The errors that wrap it say what to do.
var ErrWrongProtocol = errors.New("wrong hand-off protocol")

// Get gets a page of an engine. The error says that no answer came.
type Get func(ctx context.Context, path string) (status int, answer []byte, err error)

// Recognizer is a Dialect that tells by an engine's pages whether the engine speaks it.
type Recognizer interface {
	// Recognize returns an error that wraps ErrWrongProtocol if the engine does not speak the dialect, and nil if it does or if
	// its pages do not tell. Any other error says that the engine has not answered.
	Recognize(ctx context.Context, get Get) error
}

// Engine is a kind of inference server.
type Engine string

// The engines that hand-off protocols are for.
const (
	VLLM   Engine = "vLLM"
	SGLang Engine = "SGLang"
	TRTLLM Engine = "TensorRT-LLM"
)

// engineMarks say by what the pages of an engine are recognized: the beginning of the names of its metrics, and the owner of its models
// in /v1/models.
var engineMarks = []struct {
	engine         Engine
	metrics, owner string
}{
	{VLLM, "vllm:", "vllm"},
	{SGLang, "sglang:", "sglang"},
	{TRTLLM, "trtllm_", "tensorrt_llm"},
}

// recognize returns which engine answers, and its metrics page; "" and nil if its pages do not tell. An engine with an API key shows its
// metrics, but not its models; trtllm-serve has its metrics elsewhere.
func recognize(ctx context.Context, get Get) (Engine, []byte, error) {
	status, page, err := get(ctx, "/metrics")
	if err != nil {
		return "", nil, err
	}
	if status == http.StatusOK {
		for _, m := range engineMarks {
			if hasFamily(page, m.metrics) {
				return m.engine, page, nil
			}
		}
	}
	status, models, err := get(ctx, "/v1/models")
	if err != nil || status != http.StatusOK {
		return "", nil, err
	}
	return ownerOf(models), nil, nil
}

// hasFamily reports whether a metrics page declares a metric whose name begins so.
func hasFamily(page []byte, name string) bool {
	return bytes.Contains(page, append([]byte("# TYPE "), name...))
}

// ownerOf returns the engine that owns the models of a list.
func ownerOf(list []byte) Engine {
	var models struct {
		Data []struct {
			Owner string `json:"owned_by"`
		} `json:"data"`
	}
	if json.Unmarshal(list, &models) != nil || len(models.Data) == 0 {
		return ""
	}
	for _, m := range engineMarks {
		if models.Data[0].Owner == m.owner {
			return m.engine
		}
	}
	return ""
}

// mustBe fails if another engine than want answers. It returns the engine's metrics page, nil if there is none.
func mustBe(ctx context.Context, get Get, want Engine) ([]byte, error) {
	engine, page, err := recognize(ctx, get)
	if err != nil || engine == "" || engine == want {
		return page, err
	}
	return nil, fmt.Errorf("%w: the engine is %s, and this protocol is %s's: set --kv-connector=%s", ErrWrongProtocol, engine, want, NamesOf(engine))
}

// Recognize implements Recognizer.
func (vllmEngine) Recognize(ctx context.Context, get Get) error {
	_, err := mustBe(ctx, get, VLLM)
	return err
}

// Recognize implements Recognizer.
func (*sglang) Recognize(ctx context.Context, get Get) error {
	_, err := mustBe(ctx, get, SGLang)
	return err
}

// Recognize implements Recognizer.
func (trtllmEngine) Recognize(ctx context.Context, get Get) error {
	_, err := mustBe(ctx, get, TRTLLM)
	return err
}

// vllmSince is a metric of vLLM's pages that is younger than those of its connectors: a page without it does not tell that a connector
// is missing. The metrics of a connector are on the page from the start, and only if the engine has it.
const vllmSince = "vllm:prompt_tokens_by_source"

// The beginnings of the names of connectors' metrics. Mooncake, MoRI-IO and the connectors without parameters have none.
const (
	nixlMetrics       = "vllm:nixl_"
	offloadingMetrics = "vllm:kv_offload_"
)

// connectorIs reports whether an engine of vLLM has a connector with metrics; known is false if its pages do not tell. The error wraps
// ErrWrongProtocol if the engine is another one.
func connectorIs(ctx context.Context, get Get, metrics string) (has, known bool, err error) {
	page, err := mustBe(ctx, get, VLLM)
	if err != nil || !hasFamily(page, vllmSince) {
		return false, false, err
	}
	return hasFamily(page, metrics), true, nil
}

// Recognize implements Recognizer. The connector that pulls and the one that pushes have the same metrics: prefill's answer tells them
// apart.
func (*vllmNIXL) Recognize(ctx context.Context, get Get) error {
	has, known, err := connectorIs(ctx, get, nixlMetrics)
	if has || !known {
		return err
	}
	return fmt.Errorf("%w: the engine has no NIXL connector (its metrics page has no %s*): start it with one, or set the --kv-connector of its connector",
		ErrWrongProtocol, nixlMetrics)
}

// Recognize implements Recognizer. A decode engine with NIXL's connector would end.
func (*vllmMooncake) Recognize(ctx context.Context, get Get) error {
	has, _, err := connectorIs(ctx, get, nixlMetrics)
	if !has {
		return err
	}
	return fmt.Errorf("%w: the engine has a NIXL connector, and not Mooncake's: set --kv-connector=nixlv2", ErrWrongProtocol)
}

// Recognize implements Recognizer. The connector has no metrics of its own.
func (*vllmMoRIIO) Recognize(ctx context.Context, get Get) error {
	page, err := mustBe(ctx, get, VLLM)
	if err != nil || !hasFamily(page, vllmSince) {
		return err
	}
	for _, other := range []struct{ metrics, protocol string }{{nixlMetrics, "nixlv2"}, {offloadingMetrics, "offloading"}} {
		if hasFamily(page, other.metrics) {
			return fmt.Errorf("%w: the engine's metrics page has %s*, so that its connector is not MoRIIOConnector: set --kv-connector=%s", ErrWrongProtocol, other.metrics, other.protocol)
		}
	}
	return nil
}

// Recognize implements Recognizer. Decode waits for half a minute for a prefill engine without the tier.
func (*vllmOffloading) Recognize(ctx context.Context, get Get) error {
	has, known, err := connectorIs(ctx, get, offloadingMetrics)
	if has || !known {
		return err
	}
	return fmt.Errorf("%w: the engine has no OffloadingConnector (its metrics page has no %s*): start it with one, or set the --kv-connector of its connector",
		ErrWrongProtocol, offloadingMetrics)
}

var (
	_ Recognizer = (*vllmNIXL)(nil)
	_ Recognizer = (*vllmPush)(nil)
	_ Recognizer = vllmFiles{}
	_ Recognizer = (*vllmMooncake)(nil)
	_ Recognizer = (*vllmOffloading)(nil)
	_ Recognizer = (*vllmMoRIIO)(nil)
	_ Recognizer = (*sglang)(nil)
	_ Recognizer = trtllm{}
	_ Recognizer = (*trtllmGenerationFirst)(nil)
)
