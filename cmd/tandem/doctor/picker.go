package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// picker is a replica of the endpoint picker, as far as its ports are known.
type picker struct {
	name                            string
	extproc, health, metrics, admin string  // host:port; "" = not known
	pod                             *target // nil outside of clusters

	asked    bool   // somebody could be asked whether it is ready
	trouble  string // why it is not
	detail   string // what else it says of itself
	page     promtext.Page
	pageErr  error
	known    []knownEndpoint // from the admin port
	adminErr error
	block    int // tokens of a block in its prefix index; 0 = not known
	skew     skew
}

// knownEndpoint is an endpoint as a picker shows it.
type knownEndpoint struct {
	Name    string
	Address string
	Labels  map[string]string
	LoadAge float64 `json:"load_age_seconds"` // -1 = never read
}

// shortName leaves out the namespace that files have by default.
func (e *knownEndpoint) shortName() string { return strings.TrimPrefix(e.Name, "default/") }

// debugEndpoints asks the picker that the flags name.
func (f *fleet) debugEndpoints(ctx context.Context) ([]knownEndpoint, error) {
	var state struct{ Endpoints []knownEndpoint }
	err := asker{client: f.direct.http}.getJSON(ctx, "http://"+f.parts.Admin+"/debug/endpoints", &state)
	return state.Endpoints, err
}

// meetPicker asks a picker for all that the checks need.
func (f *fleet) meetPicker(ctx context.Context, p *picker) {
	looks := []func(context.Context){func(ctx context.Context) { f.meetHealth(ctx, p) }}
	if p.hasOperations() {
		looks = append(looks, func(ctx context.Context) {
			p.page, p.pageErr = f.operator(p).metrics(ctx, f.operations(p))
		})
	}
	if p.admin != "" {
		looks = append(looks, func(ctx context.Context) { f.meetAdmin(ctx, p) })
	}
	parallel(looks, func(look func(context.Context)) {
		ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
		defer cancel()
		look(ctx)
	})
}

// hasOperations tells whether its metrics port is known.
func (p *picker) hasOperations() bool { return p.metrics != "" || p.pod != nil }

// operations is the URL of the metrics port.
func (f *fleet) operations(p *picker) string {
	if p.pod != nil {
		return f.reach.url(p.pod, "http", p.pod.addr.Port(), "")
	}
	return "http://" + p.metrics
}

// meetHealth asks whether it is ready: on the metrics port, which gives reasons, and on the gRPC port, which Envoy asks.
func (f *fleet) meetHealth(ctx context.Context, p *picker) {
	if p.hasOperations() {
		p.asked = true
		a, err := f.operator(p).ask(ctx, http.MethodGet, f.operations(p)+"/readyz", nil, "")
		if err != nil {
			p.trouble = "its metrics port: " + err.Error()
			return
		}
		p.skew = a.skew
		first, more, _ := strings.Cut(strings.TrimSpace(string(a.body)), "\n")
		if p.detail = oneLine(more); a.status != http.StatusOK {
			p.trouble = "it is not ready: " + first
			return
		}
	}
	if p.health != "" {
		p.asked = true
		if err := serving(ctx, p.health); err != nil {
			p.trouble = "its health port: " + err.Error()
		}
	}
}

// oneLine joins lines by semicolons, but for one that introduces the next.
func oneLine(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && b.Len() > 0 {
			separator := "; "
			if strings.HasSuffix(b.String(), ":") {
				separator = " "
			}
			b.WriteString(separator)
		}
		b.WriteString(line)
	}
	return b.String()
}

// serving asks the gRPC health service.
func serving(ctx context.Context, address string) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		return errors.New(lastPart(err.Error()))
	}
	if reply.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("readiness is %v", reply.GetStatus())
	}
	return nil
}

// lastPart is the cause in gRPC's sentences.
func lastPart(text string) string {
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return strings.Trim(text, `"`)
}

// meetAdmin asks what it knows of the pool, and how long its blocks are. A picker of others has no such port.
func (f *fleet) meetAdmin(ctx context.Context, p *picker) {
	known, err := f.debugEndpoints(ctx)
	if err != nil {
		p.adminErr = err
		return
	}
	p.known = known
	if a, err := f.operator(p).get(ctx, "http://"+p.admin+"/debug/config"); err == nil {
		p.block = blockSize(a.body)
	}
}

// blockSize finds the block size of the prefix index in an EndpointPickerConfig, 0 if it has none. One that follows the
// engines is none to compare.
func blockSize(config []byte) int {
	var c struct {
		Plugins []struct {
			Type       string
			Parameters struct {
				AutoTune        bool `yaml:"autoTune"`
				BlockSizeTokens int  `yaml:"blockSizeTokens"`
			}
		}
	}
	if yaml.Unmarshal(config, &c) != nil {
		return 0
	}
	for _, p := range c.Plugins {
		if strings.Contains(p.Type, "prefix-cache-producer") && !p.Parameters.AutoTune {
			return p.Parameters.BlockSizeTokens
		}
	}
	return 0
}
