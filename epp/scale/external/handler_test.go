package external

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp/scale"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeSource struct {
	sizes []scale.Size
	err   error
}

func (f fakeSource) Sizes() ([]scale.Size, error) { return f.sizes, f.err }
func (fakeSource) Changed() <-chan struct{}       { return nil }

func TestHandler(t *testing.T) {
	sizes := []scale.Size{{Role: "decode", Variant: "llama-d", Desired: 7}, {Role: "prefill", Variant: "llama-p"}}
	const at = "/apis/external.metrics.k8s.io/v1beta1/namespaces/models/"
	for _, test := range []struct {
		name, path, selector string
		err                  error
		code                 int
		values               []string // with 200
	}{
		{"a role", at + "tandem_desired_replicas", "role=decode", nil, 200, []string{"7"}},
		{"a role and a variant", at + "tandem_desired_replicas", "role=prefill,variant=llama-p", nil, 200, []string{"0"}},
		{"a set", at + "tandem_desired_replicas", "role in (prefill,decode)", nil, 200, []string{"7", "0"}},
		{"by WVA's name", at + "wva_desired_replicas", "variant_name=llama-d", nil, 200, []string{"7"}},
		{"by its older name", at + "inferno_desired_replicas", "variant_name=llama-p", nil, 200, []string{"0"}},
		{"no such label", at + "wva_desired_replicas", "role=decode", nil, 200, []string{}},
		{"no such metric", at + "tandem_inflight", "", nil, 404, nil},
		{"another namespace", "/apis/external.metrics.k8s.io/v1beta1/namespaces/other/tandem_desired_replicas", "", nil, 404, nil},
		{"a broken selector", at + "tandem_desired_replicas", "role=(", nil, 400, nil},
		{"not known yet", at + "tandem_desired_replicas", "role=decode", errors.New("just started"), 503, nil},
		{"another API", "/apis/metrics.k8s.io/v1beta1", "", nil, 404, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler := Handler(Options{Source: fakeSource{sizes, test.err}, Namespace: "models", Now: func() time.Time { return time.Unix(1e9, 0) }})
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, test.path+"?labelSelector="+url.QueryEscape(test.selector), nil))
			var got struct {
				Kind, Message, Reason string
				Items                 []struct{ MetricName, Value, Timestamp string }
			}
			if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil || answer.Code != test.code {
				t.Fatalf("%d %s, %v; want %d", answer.Code, answer.Body, err, test.code)
			}
			if test.code != http.StatusOK {
				if got.Kind != "Status" || got.Message == "" || got.Reason == "" {
					t.Errorf("the error %s is none of Kubernetes'", answer.Body)
				}
				return
			}
			values := []string{}
			for _, one := range got.Items {
				values = append(values, one.Value)
				if one.MetricName == "" || one.Timestamp != "2001-09-09T01:46:40Z" {
					t.Errorf("%+v", one)
				}
			}
			if !slices.Equal(values, test.values) {
				t.Errorf("values %q, want %q", values, test.values)
			}
		})
	}
}

// TestDiscovery: the API server takes the API for available only if this is answered.
func TestDiscovery(t *testing.T) {
	answer := httptest.NewRecorder()
	Handler(Options{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/apis/external.metrics.k8s.io/v1beta1", nil))
	var got struct {
		Kind, GroupVersion string
		Resources          []struct{ Name string }
	}
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil || got.Kind != "APIResourceList" || got.GroupVersion != "external.metrics.k8s.io/v1beta1" || len(got.Resources) != 3 {
		t.Errorf("%s, %v", answer.Body, err)
	}
}
