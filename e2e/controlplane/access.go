package controlplane

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// writeSecrets makes the administrator's token and kubeconfig, and the key that signs tokens of service accounts.
func (p *Plane) writeSecrets() error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("making the key of service accounts: %w", err)
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(p.Path("accounts.key"), block, 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.Path("tokens.csv"), []byte(p.token+",admin,admin,system:masters\n"), 0o600)
}

// Kubeconfig returns the path of the administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return p.kubeconfigPath("admin") }

func (p *Plane) kubeconfigPath(name string) string { return p.Path(name + ".kubeconfig") }

func (p *Plane) kubeconfig(name, token, namespace string) string {
	p.tb.Helper()
	file := p.kubeconfigPath(name)
	err := clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"plane": {Server: p.URL(), CertificateAuthority: p.Path("pki/apiserver.crt")}},
		AuthInfos:      map[string]*api.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*api.Context{"plane": {Cluster: "plane", AuthInfo: name, Namespace: namespace}},
		CurrentContext: "plane",
	}, file)
	if err != nil {
		p.tb.Fatal(err)
	}
	return file
}

// As returns what a pod of a service account uses: its configuration, and the path of its kubeconfig. It makes the account if
// it does not exist.
func (p *Plane) As(ctx context.Context, namespace, account string) (config *rest.Config, kubeconfig string) {
	p.tb.Helper()
	accounts := Client(p.tb, p.Config()).CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Get(ctx, account, metav1.GetOptions{}); err != nil {
		made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
		if _, err := accounts.Create(ctx, made, metav1.CreateOptions{}); err != nil {
			p.tb.Fatal(err)
		}
	}
	token, err := accounts.CreateToken(ctx, account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		p.tb.Fatal(err)
	}
	return p.config(token.Status.Token), p.kubeconfig(namespace+"-"+account, token.Status.Token, namespace)
}

// HTTPClient returns an HTTP client for an API server, by any configuration. The client's idle connections are closed at the
// end of the test.
func HTTPClient(tb testing.TB, config *rest.Config) *http.Client {
	tb.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) }) // the client's own method does not see the transport below the one that adds the token
	return client
}

// Client returns a client of an API server whose idle connections are closed at the end of the test.
func Client(tb testing.TB, config *rest.Config) kubernetes.Interface {
	tb.Helper()
	client, err := kubernetes.NewForConfigAndClient(config, HTTPClient(tb, config))
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// Kubectl runs kubectl as the administrator and returns its stdout; the error has its stderr.
func (p *Plane) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	p.tb.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(p.tools, "kubectl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + p.Kubeconfig(), "HOME=" + p.dir, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(stdin)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// InstallCRDs installs the CRDs in the given files, globs allowed, and waits until they can be used.
func (p *Plane) InstallCRDs(patterns ...string) {
	p.tb.Helper()
	args := []string{"apply", "--server-side", "-o", "name"}
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			p.tb.Fatalf("no file matches %s (make .tools/crds fetches those of others): %v", pattern, err)
		}
		for _, file := range files {
			args = append(args, "-f", file)
		}
	}
	names, err := p.Kubectl(p.tb.Context(), "", args...)
	if err != nil {
		p.tb.Fatal(err)
	}
	wait := append([]string{"wait", "--for=condition=Established", "--timeout=2m"}, strings.Fields(names)...)
	if _, err := p.Kubectl(p.tb.Context(), "", wait...); err != nil {
		p.tb.Fatal(err)
	}
}

// CompactEtcd deletes the history of all objects. A watch that was interrupted and wants to continue from before then gets an
// error, after the API server was restarted: until then it still has the latest part of the history itself.
func (p *Plane) CompactEtcd(ctx context.Context) error {
	var now struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := p.askEtcd(ctx, "/v3/kv/range", `{"key":"AA=="}`, &now); err != nil {
		return err
	}
	return p.askEtcd(ctx, "/v3/kv/compaction", `{"physical":true,"revision":"`+now.Header.Revision+`"}`, new(struct{}))
}

func (p *Plane) askEtcd(ctx context.Context, path, question string, answer any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.etcdURL()+path, strings.NewReader(question))
	if err != nil {
		return fmt.Errorf("asking etcd: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	got, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking etcd: %w", err)
	}
	defer got.Body.Close()
	if got.StatusCode != http.StatusOK {
		return fmt.Errorf("asking etcd for %s: %s", path, got.Status)
	}
	if err := json.NewDecoder(got.Body).Decode(answer); err != nil {
		return fmt.Errorf("reading etcd's answer to %s: %w", path, err)
	}
	return nil
}
