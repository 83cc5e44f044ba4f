package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
)

// picker is a replica of the endpoint picker, with the ports that are known.
type picker struct {
	name                            string
	extproc, health, metrics, admin string  // host:port; "" = unknown
	pod                             *target // nil outside of clusters

	asked    bool   // its readiness could be requested
	trouble  string // why it is not ready
	detail   string // further lines of its readiness page
	page     promtext.Page
	pageErr  error
	known    []knownEndpoint // from the admin port
	adminErr error
	block    int // tokens per block of its prefix index; 0 = unknown
	skew     skew
}

// knownEndpoint is an endpoint as a picker shows it.
type knownEndpoint struct {
	Name    string
	Address string
	Labels  map[string]string
	LoadAge float64 `json:"load_age_seconds"` // -1 = never read
}

// shortName returns the name without the namespace that files have by default.
func (e *knownEndpoint) shortName() string { return strings.TrimPrefix(e.Name, "default/") }

// debugEndpoints reads the endpoints of the picker that the flags name.
func (f *fleet) debugEndpoints(ctx context.Context) ([]knownEndpoint, error) {
	var state struct{ Endpoints []knownEndpoint }
	err := asker{client: f.direct.http}.getJSON(ctx, "http://"+f.parts.Admin+"/debug/endpoints", &state)
	return state.Endpoints, err
}

// meetPicker reads what the checks need from a picker.
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

// hasOperations reports whether its metrics port is known.
func (p *picker) hasOperations() bool { return p.metrics != "" || p.pod != nil }

// operations returns the URL of the metrics port.
func (f *fleet) operations(p *picker) string {
	if p.pod != nil {
		return f.reach.url(p.pod, "http", p.pod.addr.Port(), "")
	}
	return "http://" + p.metrics
}

// meetHealth requests its readiness: on the metrics port, which gives reasons, and on the gRPC port, which Envoy uses.
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

// oneLine joins lines by semicolons, except after a line that introduces the next one.
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

// serving calls the gRPC health service.
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

// lastPart returns the cause from a gRPC error text.
func lastPart(text string) string {
	if i := strings.LastIndex(text, ": "); i >= 0 {
		text = text[i+2:]
	}
	return strings.Trim(text, `"`)
}

// meetAdmin reads the picker's endpoints and its block size. Other products' pickers have no such port.
func (f *fleet) meetAdmin(ctx context.Context, p *picker) {
	known, err := f.readLoads(ctx)
	if err != nil {
		p.adminErr = err
		return
	}
	p.known = known
	if a, err := f.operator(p).get(ctx, "http://"+p.admin+"/debug/config"); err == nil {
		p.block = blockSize(a.body)
	}
}

// readLoads reads the picker's endpoints, for up to oldLoad until it has read the load of each that answers: one that has just
// started, or has just found an endpoint, reads it soon.
func (f *fleet) readLoads(ctx context.Context) (known []knownEndpoint, err error) {
	ctx, cancel := context.WithTimeout(ctx, oldLoad)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		now, err := f.debugEndpoints(ctx)
		if err != nil && known == nil {
			return nil, err
		}
		if err == nil {
			known = now
		}
		if !slices.ContainsFunc(known, func(e knownEndpoint) bool { return e.LoadAge < 0 && f.answers(e) }) {
			return known, nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return known, nil
		}
	}
}

// answers reports whether an endpoint that the picker knows answers the doctor.
func (f *fleet) answers(e knownEndpoint) bool {
	return slices.ContainsFunc(f.targets, func(t *target) bool { return t.addr.String() == e.Address && t.alive == nil })
}

// blockSize returns the block size of the prefix index in an EndpointPickerConfig. It is 0 if there is none, or if it
// follows the engines, because then there is nothing to compare.
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
