package podwatch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// API is how to reach the API server.
type API struct {
	URL    string // without a path
	Client *http.Client
	// Token returns the bearer token of a request. It is called for each, because the kubelet replaces tokens.
	Token func() (string, error)
}

// accountDir is where the kubelet puts the credentials of a pod's service account.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns the API server of the cluster that the process runs in, with the credentials of the pod's service account.
// env looks up environment variables.
func InCluster(env func(string) (string, bool)) (API, error) { return inCluster(env, accountDir) }

func inCluster(env func(string) (string, bool), dir string) (API, error) {
	host, _ := env("KUBERNETES_SERVICE_HOST")
	port, _ := env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return API{}, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: run in a pod of the cluster")
	}
	authorities, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return API{}, fmt.Errorf("reading the API server's authorities: %w (the pod needs automountServiceAccountToken)", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authorities) {
		return API{}, fmt.Errorf("%s holds no certificate in PEM", filepath.Join(dir, "ca.crt"))
	}
	return API{
		URL: "https://" + net.JoinHostPort(host, port),
		Client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: listTimeout, ForceAttemptHTTP2: true,
			// A connection whose other end is gone would else be used again for each list.
			HTTP2: &http.HTTP2Config{SendPingTimeout: listTimeout, PingTimeout: listTimeout / 2}}},
		Token: func() (string, error) {
			token, err := os.ReadFile(filepath.Join(dir, "token"))
			return strings.TrimSpace(string(token)), err
		},
	}, nil
}

const (
	// listTimeout bounds a list. One of 5,000 pods takes a second.
	listTimeout = 30 * time.Second
	// watchTime is the shortest time that the API server is asked to watch, and half the longest: sidecars that were started
	// together must not list together. The list that follows has whatever a watch has missed.
	watchTime = 5 * time.Minute
	// watchTimeout ends a watch whose connection is dead.
	watchTimeout = 2*watchTime + listTimeout
	// maxComplaint is how much of an error answer is read (bytes).
	maxComplaint = 4 << 10
)

// resource is a list of objects of one kind.
type resource struct {
	path  string
	query url.Values
}

// list is the API server's answer to a list.
type list struct {
	Metadata struct{ ResourceVersion string }
	Items    []json.RawMessage
}

// event is one line of a watch.
type event struct {
	Type   string
	Object json.RawMessage
}

// list returns all objects, and the version to watch from.
func (a API) list(ctx context.Context, r resource) (l list, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := a.get(ctx, r, nil)
	if err != nil {
		return l, err
	}
	defer body.Close()
	return l, json.NewDecoder(body).Decode(&l)
}

// watch calls on for each change since a version, until the watch ends.
func (a API) watch(ctx context.Context, r resource, version string, on func(event) error) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	body, err := a.get(ctx, r, url.Values{"watch": {"true"}, "resourceVersion": {version},
		"timeoutSeconds": {fmt.Sprint(int((watchTime + rand.N(watchTime)).Seconds()))}})
	if err != nil {
		return err
	}
	defer body.Close()
	for events := json.NewDecoder(body); ; {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // the API server ends every watch sooner or later
		} else if err != nil {
			return err
		}
		if e.Type == "ERROR" {
			return errors.New(complaint(e.Object))
		}
		if err := on(e); err != nil {
			return err
		}
	}
}

// get asks for a resource, and returns the answer's body.
func (a API) get(ctx context.Context, r resource, more url.Values) (io.ReadCloser, error) {
	query := url.Values{}
	for _, values := range []url.Values{r.query, more} {
		for key, value := range values {
			query[key] = value
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+r.path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	token, err := a.Token()
	if err != nil {
		return nil, fmt.Errorf("reading the service account's token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "tandem-sidecar")
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxComplaint))
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%s: %s", resp.Status, complaint(text))
}

// complaint returns the message of a Status object, or the text itself.
func complaint(text []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		return strings.TrimSpace(string(text))
	}
	return status.Message
}
