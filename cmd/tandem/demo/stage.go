package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/e2e/sim"
	"github.com/tandem-serving/tandem/e2e/stack"
)

const (
	modelName = "tiny"
	blockSize = 32 // tokens
)

// engine is one simulated engine of the stage.
type engine struct {
	address string // host:port of its data port
	admin   string // of its admin port
}

// stage is the running programs and the way to them.
type stage struct {
	group                      *stack.Group
	prefill, decode, reference engine
	sidecar                    string // host:port of its data port
	http                       *http.Client
}

// newStage gives an empty stage, and the context that ends when one of its programs dies.
func newStage(ctx context.Context) (*stage, context.Context) {
	group, alive := stack.NewGroup(ctx)
	// Its own transport: no proxy of the environment stands between a machine and itself.
	return &stage{group: group, http: &http.Client{Transport: &http.Transport{}}}, alive
}

func (s *stage) start(ctx context.Context, dir string) error {
	for _, one := range []struct {
		name string
		to   *engine
	}{{"prefill engine", &s.prefill}, {"decode engine", &s.decode}, {"reference engine", &s.reference}} {
		p, err := s.group.Start(ctx, stack.Sim(dir, one.name, "--model="+modelName, "--block-size="+strconv.Itoa(blockSize)))
		if err != nil {
			return err
		}
		if err := addresses(p, map[string]*string{"http": &one.to.address, "admin": &one.to.admin}); err != nil {
			return err
		}
	}
	program, err := stack.Sidecar(dir, s.decode.address)
	if err != nil {
		return err
	}
	p, err := s.group.Start(ctx, program)
	if err != nil {
		return err
	}
	return addresses(p, map[string]*string{"http": &s.sidecar})
}

func addresses(p *stack.Process, wanted map[string]*string) (err error) {
	for purpose, to := range wanted {
		if *to, err = p.Address(purpose); err != nil {
			return err
		}
	}
	return nil
}

// stop ends everything that was started.
func (s *stage) stop() error {
	s.http.CloseIdleConnections()
	return s.group.Stop()
}

// spoil makes every prefill leg go wrong; an empty fault does nothing.
func (s *stage) spoil(ctx context.Context, fault string) error {
	if fault == "" {
		return nil
	}
	kind, arg, _ := strings.Cut(fault, ":")
	body, err := json.Marshal(sim.Fault{Leg: "prefill", Fault: kind, Arg: arg})
	if err != nil {
		return fmt.Errorf("writing the fault: %w", err)
	}
	answer, err := s.admin(ctx, http.MethodPost, s.prefill, "/sim/faults", body)
	if err != nil {
		return err
	}
	if answer.status != http.StatusNoContent {
		return boot.Usagef("setting --fault: %s", bytes.TrimSpace(answer.body))
	}
	return nil
}

// state asks an engine for its blocks and counters.
func (s *stage) state(ctx context.Context, e engine) (state sim.State, err error) {
	answer, err := s.admin(ctx, http.MethodGet, e, "/sim/state", nil)
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(answer.body, &state); err != nil {
		return state, fmt.Errorf("reading the state of %s: %w", e.admin, err)
	}
	return state, nil
}

// settleTime is how long blocks may be held after the last answer: the prefill engine hears of the end of a transfer by a
// notification, which takes milliseconds, and a lease would hold them for 30 s.
const settleTime = 3 * time.Second

// settle waits until an engine holds no blocks, for settleTime at most, and gives its last state.
func (s *stage) settle(ctx context.Context, e engine) (sim.State, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(settleTime)
	for {
		state, err := s.state(ctx, e)
		if err != nil || state.Blocks.Used == 0 || time.Now().After(deadline) {
			return state, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return state, context.Cause(ctx)
		}
	}
}

type adminAnswer struct {
	status int
	body   []byte
}

func (s *stage) admin(ctx context.Context, method string, e engine, path string, body []byte) (adminAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+e.admin+path, bytes.NewReader(body))
	if err != nil {
		return adminAnswer{}, fmt.Errorf("asking %s: %w", e.admin, err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return adminAnswer{}, fmt.Errorf("asking a simulator: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return adminAnswer{}, fmt.Errorf("asking a simulator: %w", err)
	}
	return adminAnswer{resp.StatusCode, answer}, nil
}
