package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
	"github.com/tandem-serving/tandem/cmd/tandem/workload"
	"github.com/tandem-serving/tandem/pd"
)

// side is one of two things that are compared, or the only one.
type side struct {
	name     string
	url      string
	mode     string // x-tandem-pd; "": not sent
	gpus     int    // 0: not told
	endpoint *client.Endpoint
	cost     workload.Cost
}

// prepare makes the trial that the flags ask for. It asks the endpoints for their models and for what words cost.
func (s *settings) prepare(ctx context.Context, std boot.IO) (*trial, error) {
	points, err := s.points()
	if err != nil {
		return nil, err
	}
	tlsOf, err := boot.ClientTLS(boot.PeerTLS{CAFile: s.Target.CA, CertDir: s.Target.Cert, Insecure: s.Target.NoCheck},
		boot.Log{}.New(std))
	if err != nil {
		return nil, err
	}
	t := &trial{settings: s, points: points, progress: newProgress(std.Stderr)}
	ready := func(err error) (*trial, error) {
		if err != nil {
			t.close()
			return nil, err
		}
		return t, nil
	}
	urls := []string{s.Target.URL}
	if s.Compare.Against != "" {
		urls = append(urls, s.Compare.Against)
	}
	for i, u := range urls {
		e, err := s.endpoint(u, tlsOf())
		if err != nil {
			return ready(err)
		}
		one := &side{name: s.nameOf(u), url: u, mode: s.Target.Mode, endpoint: e}
		if i < len(s.Judge.GPUs) {
			one.gpus = s.Judge.GPUs[i]
		}
		t.sides = append(t.sides, one)
		if err := t.meet(ctx, one, s.Target.Model); err != nil {
			return ready(err)
		}
	}
	if modes := s.modes(); len(modes) == 2 {
		first, second := *t.sides[0], *t.sides[0]
		first.name, first.mode, second.name, second.mode = modes[0], modes[0], modes[1], modes[1]
		t.sides = []*side{&first, &second}
	}
	return ready(nil)
}

// nameOf names the side of an endpoint.
func (s *settings) nameOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || s.Compare.Against == "" {
		return "all"
	}
	return u.Host + strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
}

func (s *settings) endpoint(address string, config *tls.Config) (*client.Endpoint, error) {
	header, err := s.Target.header()
	if err != nil {
		return nil, err
	}
	extra, err := s.Target.extra()
	if err != nil {
		return nil, err
	}
	if s.Target.Key != "" {
		key, err := readKey(s.Target.Key)
		if err != nil {
			return nil, err
		}
		header.Set("Authorization", "Bearer "+key)
	}
	api := pd.APIChat
	if s.Target.API == "completions" {
		api = pd.APICompletions
	}
	connections := s.Load.InFlight
	if !s.isOpen() {
		connections = s.concurrency()
	}
	return client.New(client.Options{URL: address, Model: s.Target.Model, API: api, Stream: s.Target.Stream, Header: header, Extra: extra,
		TLS: config, ConnectTimeout: s.Target.Connect, Timeout: s.Target.Timeout, Connections: connections})
}

// points returns what is measured: one load, or one for each length of a sweep.
func (s *settings) points() ([]*point, error) {
	if s.Prompts.Trace != "" {
		trace, err := s.trace()
		if err != nil {
			return nil, boot.Configf("reading the trace: %w", err)
		}
		return []*point{{input: "trace", source: trace}}, nil
	}
	source := workload.Synthetic{Input: s.Prompts.Input, Output: s.Prompts.Output, Rate: s.Load.Rate,
		Constant: s.Load.Arrivals == "constant", Share: s.Prompts.Share, Groups: s.Prompts.Groups}
	if len(s.Compare.Sweep) == 0 {
		return []*point{{input: source.Input.String(), source: source}}, nil
	}
	var all []*point
	for _, tokens := range s.Compare.Sweep {
		source.Input = workload.Lengths{Least: tokens, Most: tokens}
		all = append(all, &point{input: source.Input.String(), tokens: tokens, source: source})
	}
	return all, nil
}

func (s *settings) trace() (*workload.Trace, error) {
	file, err := os.Open(s.Prompts.Trace)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	trace, err := workload.ReadTrace(file, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Prompts.Trace, err)
	}
	if trace.Untimed {
		return nil, fmt.Errorf("%s does not say when requests came", s.Prompts.Trace)
	}
	trace.Speed, trace.Tokens, trace.MaxInput, trace.Start = s.Prompts.Speed, s.Prompts.Scale, s.Prompts.MaxInput, s.Prompts.Start
	if len(trace.Calls(nil, s.Load.bound())) == 0 {
		return nil, fmt.Errorf("%s has no request from --trace-start on within --duration that --trace-max-input allows", s.Prompts.Trace)
	}
	return trace, nil
}

// Lengths, in words, of the two prompts by which the cost of a word is found.
var probeWords = [2]int{32, 256}

// meet finds out which model an endpoint has, what it accepts, and how it counts tokens.
func (t *trial) meet(ctx context.Context, s *side, model string) error {
	t.progress.say("asking %s for its models, and how it counts tokens …", s.url)
	names, err := s.endpoint.Models(ctx)
	if failure, ok := errors.AsType[*client.Failure](err); ok && (failure.Unreachable || failure.Denied()) {
		return refusal(s.url, model, nil, failure)
	}
	if model == "" {
		if model, err = choose(names, err); err != nil {
			return err
		}
		s.endpoint.SetModel(model)
	}
	var tokens [2]int
	for i, words := range probeWords {
		// The same words for both sides, so that equal tokenizers get prompts of equal lengths: a word more or less in every prompt
		// would be a difference of the sides that no number of rounds cancels.
		n, err := s.endpoint.Probe(ctx, workload.Words(0, uint64(i), words))
		if failure, ok := errors.AsType[*client.Failure](err); ok {
			return refusal(s.url, model, names, failure)
		} else if err != nil {
			return err
		}
		tokens[i] = int(n)
	}
	cost, ok := workload.CostOf(probeWords, tokens)
	if s.cost = cost; !ok {
		s.cost = workload.DefaultCost
		t.notes = append(t.notes, fmt.Sprintf("%s does not say how many tokens a prompt has, or nothing plausible (%d for %d words, %d for %d): "+
			"each word is taken for a token.", s.url, tokens[0], probeWords[0], tokens[1], probeWords[1]))
	}
	for _, note := range s.endpoint.Lacks() {
		t.notes = append(t.notes, s.url+": "+note)
	}
	return nil
}

// choose returns the only model of a list.
func choose(names []string, err error) (string, error) {
	switch {
	case err != nil:
		return "", boot.Usagef("asking for the models: %w (name one with --model)", err)
	case len(names) == 0:
		return "", boot.Usagef("asking for the models: the endpoint lists none (name one with --model)")
	case len(names) > 1:
		return "", boot.Usagef("the endpoint has %d models: choose one with --model: %s", len(names), strings.Join(names, ", "))
	}
	return names[0], nil
}

// refusal says what is wrong if an endpoint refuses the first request.
func refusal(address, model string, names []string, f *client.Failure) error {
	switch {
	case f.Unreachable:
		return boot.Missingf("calling %s: %w (check that it runs, and --url)", address, f)
	case f.Denied():
		return boot.Configf("asking %s: %w (put the key into a file and name it with --api-key-file)", address, f)
	case f.Status == http.StatusNotFound && len(names) > 0 && !slices.Contains(names, model):
		return boot.Usagef("the endpoint has no model %q: it has %s", model, strings.Join(names, ", "))
	case f.Status == http.StatusNotFound:
		return boot.Usagef("asking %s: %w (check --url, --api and --model)", address, f)
	}
	return fmt.Errorf("asking %s for a first answer: %w", address, f)
}
