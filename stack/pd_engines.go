package stack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// lookTimeout bounds one request to an engine. A busy engine answers too, because /health and /v1/models do not wait in its
	// queue.
	lookTimeout = 5 * time.Second
	// pageLimit bounds how much of a page is read, in bytes.
	pageLimit = 1 << 20
)

// findEngines checks the engines that already run. The error has a sentence for each that is not ready.
func (a *assembly) findEngines(ctx context.Context) (err error) {
	var errs [3]error
	a.pd.Prefill, errs[0] = a.find(ctx, "prefill", a.PrefillEngines)
	a.pd.Decode, errs[1] = a.find(ctx, "decode", a.DecodeEngines)
	a.pd.Plain, errs[2] = a.find(ctx, plain, a.PlainEngines)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, pod := range slices.Concat(a.pd.Prefill, a.pd.Decode, a.pd.Plain) {
		if seen[pod.Engine] {
			return fmt.Errorf("engine %s is named twice: each can be one pod only", pod.Engine)
		}
		seen[pod.Engine] = true
	}
	return nil
}

func (a *assembly) find(ctx context.Context, role string, engines []string) ([]Pod, error) {
	pods, errs := make([]Pod, len(engines)), make([]error, len(engines))
	var looking sync.WaitGroup
	for i, engine := range engines {
		looking.Go(func() {
			address, err := locate(ctx, engine)
			if err == nil {
				_, err = a.look(ctx, address, "/health")
			}
			if err != nil {
				errs[i] = fmt.Errorf("%s engine %s is not ready: %w", role, engine, err)
			}
			pods[i] = Pod{Name: role + "-" + strconv.Itoa(i), Address: address, Engine: address}
		})
	}
	looking.Wait()
	return pods, errors.Join(errs...)
}

// locate returns the ip:port of a host:port, because picker, proxy and sidecar compare addresses. If the host has several, it
// returns one that accepts connections.
func locate(ctx context.Context, engine string) (address string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errNoAnswer)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", engine)
	if err != nil {
		return "", rootCause(causeOf(ctx, err))
	}
	defer c.Close()
	found, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return "", fmt.Errorf("finding its address: %w", err)
	}
	return netip.AddrPortFrom(found.Addr().Unmap(), found.Port()).String(), nil
}

// findModel returns the model that all engines serve. Hand-offs between engines of different models give wrong answers.
func (a *assembly) findModel(ctx context.Context) error {
	var common []string
	first := ""
	for _, pod := range slices.Concat(a.pd.Decode, a.pd.Plain, a.pd.Prefill) {
		models, maker, err := a.servedModels(ctx, pod.Engine)
		if err != nil {
			return fmt.Errorf("engine %s (%s) is not ready: %w", pod.Engine, pod.Name, err)
		}
		for name, kind := range engineKinds {
			if kind.owner == maker && name != a.Engine {
				return fmt.Errorf("engine %s (%s) is one of %s, and the sidecars would speak the protocol of %s: choose the engine %s",
					pod.Engine, pod.Name, name, a.Engine, name)
			}
		}
		if first == "" {
			first, common = pod.Engine, models
		}
		was := common
		common = slices.DeleteFunc(slices.Clone(common), func(m string) bool { return !slices.Contains(models, m) })
		if len(common) == 0 {
			return fmt.Errorf("the engines serve no model in common: %s at %s, %s at %s",
				strings.Join(was, ", "), first, strings.Join(models, ", "), pod.Engine)
		}
	}
	a.pd.Model = common[0]
	return nil
}

// servedModels returns the models of an engine, and what it calls their owner: the engine's own name, "vllm" for instance.
func (a *assembly) servedModels(ctx context.Context, engine string) (models []string, maker string, err error) {
	body, err := a.look(ctx, engine, "/v1/models")
	if err != nil {
		return nil, "", err
	}
	var list struct {
		Data []struct {
			ID    string `json:"id"`
			Owner string `json:"owned_by"`
		} `json:"data"`
	}
	if json.Unmarshal(body, &list) != nil || len(list.Data) == 0 {
		return nil, "", errors.New("GET /v1/models names no model")
	}
	for _, m := range list.Data {
		models = append(models, m.ID)
	}
	return models, list.Data[0].Owner, nil
}

// ErrUnauthorized says that an engine wants an API key, or another one than PDOptions.EngineKey.
var ErrUnauthorized = errors.New("401 Unauthorized")

var errNoAnswer = fmt.Errorf("no answer within %v", lookTimeout)

// look reads a page of an engine, with its API key if it has one.
func (a *assembly) look(ctx context.Context, engine, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTimeout, errNoAnswer)
	defer cancel()
	body, err := get(ctx, "http://"+engine+path, a.EngineKey)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, rootCause(causeOf(ctx, err)))
	}
	return body, nil
}

// get reads a page; key, if it is not "", is sent as a bearer token.
func get(ctx context.Context, url, key string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	// Its own transport, because the default one uses proxies that the environment names.
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return nil, ErrUnauthorized
	default:
		return nil, errors.New(resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, pageLimit))
}

// causeOf returns why ctx ended, if the error is the context's; otherwise the error.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// rootCause removes the layers of a network error that repeat the request.
func rootCause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
