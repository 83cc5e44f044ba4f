package extproc

import (
	"context"
	"errors"
	"fmt"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-serving/tandem/epp/extproc/client"
)

// filter is the place of a stream in the gateway's filter chain.
type filter uint8

const (
	filterOne filter = iota
	filterPicker
	filterAcct
	filters
)

// String is the filter's name in metrics.
func (f filter) String() string {
	return [...]string{"one", string(client.MarkPicker), string(client.MarkAcct)}[f]
}

// filterOf reads the mark.
func filterOf(ctx context.Context) (filter, error) {
	marks := metadata.ValueFromIncomingContext(ctx, client.MetadataFilter)
	if len(marks) == 0 {
		return filterOne, nil
	}
	if len(marks) == 1 {
		switch client.Mark(marks[0]) {
		case client.MarkPicker:
			return filterPicker, nil
		case client.MarkAcct:
			return filterAcct, nil
		}
	}
	return 0, fmt.Errorf("grpc_service.initial_metadata %s must be %s or %s, or be left out for a single filter",
		client.MetadataFilter, client.MarkPicker, client.MarkAcct)
}

const (
	bodyNone   = modev3.ProcessingMode_NONE
	bodyDuplex = modev3.ProcessingMode_FULL_DUPLEX_STREAMED
)

// modes are how a gateway sends bodies on one stream.
type modes struct {
	known    bool // a gateway that does not tell is taken for one that does what the picker protocol demands
	response modev3.ProcessingMode_BodySendMode
}

// bodiless tells that no part of an answer's body comes this way. Then a stream may end while the answer runs.
func (m modes) bodiless() bool { return m.known && m.response == bodyNone }

// modesOf reads the first frame. The error names the setting of the filter that must change.
func modesOf(f filter, first *procv3.ProcessingRequest) (modes, error) {
	if first.GetObservabilityMode() && f != filterAcct {
		return modes{}, errors.New("observability_mode is on, but a filter that only watches cannot pick: set it to false")
	}
	c := first.GetProtocolConfig()
	if c == nil {
		return modes{response: bodyDuplex}, nil
	}
	need := bodyDuplex
	if f == filterAcct {
		need = bodyNone
	}
	if got := c.GetRequestBodyMode(); got != need {
		return modes{}, fmt.Errorf("processing_mode.request_body_mode of filter %q is %s: set it to %s", f, got, need)
	}
	got := c.GetResponseBodyMode()
	if got != bodyNone && got != bodyDuplex {
		return modes{}, fmt.Errorf("processing_mode.response_body_mode of filter %q is %s: set it to %s, or to %s",
			f, got, bodyNone, bodyDuplex)
	}
	return modes{known: true, response: got}, nil
}
