package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

const (
	// pathRate is the number of requests per second through the whole path, and pathLanes how many may run before one has to
	// wait for another: those of 0.3 s.
	pathRate  = 200
	pathLanes = 64
)

// tablePath is the heading of the path's series.
const tablePath = "Whole path through Envoy, 1 kB at 200 req/s: p50 beyond the engines' latency, ms. Baseline: Envoy and baselines."

// path is everything between a client and the engines. Its programs share all processors, as on a machine of their own.
type path struct {
	legs *legs
	lab  *lab
}

func newPath(ctx context.Context, l *lab) (*path, error) {
	legs, err := newLegs(ctx, l, nixl(), kB, false)
	return &path{legs, l}, err
}

// ours starts our parts, and returns the proxy.
func (p *path) ours(ctx context.Context) (*proxy, error) {
	sidecar, err := p.lab.sidecar(ctx, p.legs.decode)
	if err != nil {
		return nil, err
	}
	pages, err := p.lab.pages()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(p.lab.scratch, "path.yaml")
	if err := p.writeEndpoints(file, sidecar.addr, pages); err != nil {
		return nil, err
	}
	program := stack.EPP(p.lab.dir, "--endpoints-file="+file, "--secure-serving=false", "--log-level=error")
	picker, err := p.lab.start(ctx, program, "extproc", "")
	if err != nil {
		return nil, err
	}
	return p.proxy(ctx, picker.addr, "")
}

func (p *path) writeEndpoints(file, sidecar, pages string) error {
	var b bytes.Buffer
	b.WriteString("endpoints:\n")
	for _, pod := range []struct{ role, addr string }{{"prefill", p.legs.prefill.addr()}, {"decode", sidecar}} {
		at, err := netip.ParseAddrPort(pod.addr)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "- {name: %[1]s, address: %[2]s, port: %[3]d, metricsHost: %[4]q, labels: {%[5]s: %[1]s}}\n",
			pod.role, at.Addr(),
			at.Port(), pages, pd.RoleLabel)
	}
	return os.WriteFile(file, b.Bytes(), 0o600)
}

// baselines starts baselines in their place. It returns the addresses that a request is sent to in turn: first the prefill engine,
// as a sidecar does.
func (p *path) baselines(ctx context.Context, remote bool) (targets []string, err error) {
	for _, e := range p.legs.engines(remote) {
		baseline, err := p.lab.baseline(ctx, baselineProxy, e.addr())
		if err != nil {
			return nil, err
		}
		targets = append(targets, baseline.addr)
	}
	last := &targets[len(targets)-1]
	picker, err := p.lab.baseline(ctx, baselinePicker, *last)
	if err != nil {
		return nil, err
	}
	front, err := p.proxy(ctx, picker.addr, *last)
	if err != nil {
		return nil, err
	}
	*last = front.addr
	return targets, nil
}

// proxy is a running Envoy and its address for clients.
type proxy struct {
	*envoy.Envoy
	addr string
}

// proxy starts an Envoy that uses a picker. It follows the picker's pool or, if a pod is named, knows only that pod.
func (p *path) proxy(ctx context.Context, picker, pod string) (*proxy, error) {
	o := envoyconf.Defaults()
	o.Listen, o.Admin, o.Pickers = "127.0.0.1:0", "127.0.0.1:0", []string{picker}
	o.PickerTLS.Plaintext = true
	if pod != "" {
		at, err := netip.ParseAddrPort(pod)
		if err != nil {
			return nil, err
		}
		o.Pool, o.Static = envoyconf.PoolStatic, []netip.AddrPort{at}
	}
	var bootstrap bytes.Buffer
	if err := envoyconf.Bootstrap(&bootstrap, o); err != nil {
		return nil, err
	}
	e, err := envoy.Start(ctx, bootstrap.Bytes())
	if err != nil {
		return nil, err
	}
	p.lab.later(func() { _ = e.Stop() })
	if err := hold(strconv.Itoa(e.PID()), p.lab.cores); err != nil {
		return nil, err
	}
	addr, err := e.Listener(ctx, envoyconf.ListenerName)
	return &proxy{e, addr}, err
}

// pathSeries is one series of the path.
type pathSeries struct {
	name   string
	remote bool
	limit  float64 // ms
}

func pathTable() []pathSeries {
	return []pathSeries{{"path, local", false, 1}, {"path, remote", true, 1.5}}
}

// measurePath measures how much later answers come through the path than from the engines, with one leg or two.
func measurePath(ctx context.Context, l *lab, series pathSeries, o options) (Row, error) {
	p, err := newPath(ctx, l)
	if err != nil {
		return Row{}, err
	}
	ours, err := p.ours(ctx)
	if err != nil {
		return Row{}, err
	}
	baselines, err := p.baselines(ctx, series.remote)
	if err != nil {
		return Row{}, err
	}
	plain := shape{size: kB}
	asked := plain
	asked.mode = pd.ModeBypass.String()
	if series.remote {
		asked.mode = pd.ModeForce.String()
	}
	var loads [3][]exchanger
	defer func() {
		for _, lanes := range loads {
			closeAll(lanes)
		}
	}()
	var errs [3]error
	loads[0], errs[0] = p.legs.direct(ctx, plain.request(), series.remote, false, pathLanes)
	loads[1], errs[1] = lanesAlong(ctx, baselines, pathLanes, plain.request(), false)
	loads[2], errs[2] = lanesTo(ctx, ours.addr, pathLanes, asked.request())
	if err := errors.Join(errs[:]...); err != nil {
		return Row{}, err
	}
	o.span *= 2
	if _, err := pace(ctx, loads[:], pathRate, options{rounds: 1, span: o.span}); err != nil { // opens the connections
		return Row{}, err
	}
	times, err := pace(ctx, loads[:], pathRate, o)
	if err != nil {
		return Row{}, err
	}
	p50, _ := times[2].added(times[0])
	row := absolute(tablePath, series.name, p50, series.limit)
	row.Ours.later(times[2], times[0])
	row.Baseline = &Figure{}
	row.Baseline.later(times[1], times[0])
	row.Baseline.Value = *row.Baseline.P50
	row.Ours.P50, row.Baseline.P50 = nil, nil // the row itself has these values
	return row, nil
}

// measureUnread measures the cost of an answer's events for a picker, in ext-proc messages, by Envoy's own count of both
// filters: a long answer against a short one.
func measureUnread(ctx context.Context, l *lab) (Row, error) {
	const few = 8
	p, err := newPath(ctx, l)
	if err != nil {
		return Row{}, err
	}
	ours, err := p.ours(ctx)
	if err != nil {
		return Row{}, err
	}
	lane, err := dial(ctx, ours.addr, shape{size: kB, mode: pd.ModeBypass.String()}.request())
	if err != nil {
		return Row{}, err
	}
	defer lane.close()
	var messages [2]float64
	for i, events := range []int{few, answerEvents} {
		p.legs.decode.answers(streamed(events, time.Millisecond))
		before, err := sentToPicker(ctx, ours)
		if err != nil {
			return Row{}, err
		}
		if err := lane.exchange(ctx); err != nil {
			return Row{}, err
		}
		after, err := sentToPicker(ctx, ours)
		if err != nil {
			return Row{}, err
		}
		if messages[i] = after - before; messages[i] == 0 {
			return Row{}, errors.New("counting messages to the picker: Envoy has counted none")
		}
	}
	name := fmt.Sprintf("picker, ext-proc messages for %d more events in an answer", answerEvents-few)
	return absolute(tableAbsolute, name, []float64{messages[1] - messages[0]}, 0), nil
}

// sentToPicker returns how many messages Envoy has sent on all ext-proc streams.
func sentToPicker(ctx context.Context, p *proxy) (sum float64, err error) {
	stats, err := p.Stats(ctx, `ext_proc\..*stream_msgs_sent$`)
	for _, n := range stats {
		sum += float64(n)
	}
	return sum, err
}
