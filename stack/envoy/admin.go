package envoy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Admin returns the host:port of the admin page.
func (e *Envoy) Admin() string { return e.admin }

// Version returns the version, such as 1.40.0.
func (e *Envoy) Version(ctx context.Context) (string, error) {
	body, err := e.get(ctx, "/server_info")
	if err != nil {
		return "", err
	}
	var info struct {
		Version string `json:"version"` // commit/version/state of the tree/kind of build/TLS library
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("reading Envoy's version: %w", err)
	}
	parts := strings.Split(info.Version, "/")
	if len(parts) < 2 {
		return "", fmt.Errorf("reading Envoy's version: %q has none", info.Version)
	}
	return parts[1], nil
}

// Listener returns the host:port of a listener by its name.
func (e *Envoy) Listener(ctx context.Context, name string) (string, error) {
	body, err := e.get(ctx, "/listeners?format=json")
	if err != nil {
		return "", err
	}
	var page struct {
		Listeners []struct {
			Name    string
			Address struct {
				Socket struct {
					Host string `json:"address"`
					Port int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(body, &page); err != nil {
		return "", fmt.Errorf("reading Envoy's listeners: %w", err)
	}
	for _, l := range page.Listeners {
		if l.Name == name {
			return net.JoinHostPort(l.Address.Socket.Host, strconv.Itoa(l.Address.Socket.Port)), nil
		}
	}
	return "", fmt.Errorf("finding Envoy's listener %q: it has none of that name", name)
}

// Hosts returns the addresses, ip:port, of a cluster's members.
func (e *Envoy) Hosts(ctx context.Context, cluster string) ([]string, error) {
	body, err := e.get(ctx, "/clusters")
	if err != nil {
		return nil, err
	}
	var hosts []string
	for line := range strings.Lines(string(body)) {
		line, found := strings.CutSuffix(strings.TrimSpace(line), "::hostname::")
		host, ours := strings.CutPrefix(line, cluster+"::")
		if found && ours {
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// Stats returns the counters and gauges whose names match a regular expression. Envoy leaves out those that were never used.
func (e *Envoy) Stats(ctx context.Context, filter string) (map[string]int64, error) {
	body, err := e.get(ctx, "/stats?usedonly&filter="+url.QueryEscape(filter))
	if err != nil {
		return nil, err
	}
	stats := map[string]int64{}
	for line := range strings.Lines(string(body)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // other values are histograms or texts
			stats[name] = n
		}
	}
	return stats, nil
}

func (e *Envoy) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy: %w", err)
	}
	answer, err := e.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy for %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking Envoy for %s: %s", path, answer.Status)
	}
	return body, nil
}
