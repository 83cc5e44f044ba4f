package external

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tandem-serving/tandem/epp/scale"
)

// Group and Version are those of the API.
const (
	Group   = "external.metrics.k8s.io"
	Version = "v1beta1"
)

const (
	path         = "/apis/" + Group + "/" + Version
	groupVersion = Group + "/" + Version
)

// Options say what is served.
type Options struct {
	Source scale.Source
	// Namespace is the one that has the replicas: autoscalers of others find no metrics. "" serves all namespaces.
	Namespace string
	Now       func() time.Time
}

// metric is a metric that is served.
type metric struct {
	name   string
	labels func(*scale.Size) labels.Set
}

var served = []metric{
	{"tandem_desired_replicas", func(s *scale.Size) labels.Set { return labels.Set{"role": s.Role, "variant": s.Variant} }},
	{"wva_desired_replicas", variantName},
	{"inferno_desired_replicas", variantName},
}

func variantName(s *scale.Size) labels.Set { return labels.Set{"variant_name": s.Variant} }

// list is ExternalMetricValueList.
type list struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        metav1.ListMeta `json:"metadata"`
	Items           []value         `json:"items"`
}

// value is ExternalMetricValue.
type value struct {
	MetricName   string      `json:"metricName"`
	MetricLabels labels.Set  `json:"metricLabels"`
	Timestamp    metav1.Time `json:"timestamp"`
	Value        string      `json:"value"` // a quantity
}

// Handler returns what the API server asks.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, resources()) })
	mux.HandleFunc("GET "+path+"/namespaces/{namespace}/{metric}", o.values)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "only "+path+" is served here, not "+r.URL.Path)
	})
	return mux
}

// resources tells which metrics there are, as discovery asks.
func resources() metav1.APIResourceList {
	all := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
	for _, m := range served {
		all.APIResources = append(all.APIResources, metav1.APIResource{Name: m.name, Namespaced: true, Kind: "ExternalMetricValueList", Verbs: metav1.Verbs{"get"}})
	}
	return all
}

// values answers with the sizes that a selector fits.
func (o Options) values(w http.ResponseWriter, r *http.Request) {
	m := find(r.PathValue("metric"))
	if m == nil || o.Namespace != "" && o.Namespace != r.PathValue("namespace") {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, "namespace "+strconv.Quote(r.PathValue("namespace"))+" has no metric "+strconv.Quote(r.PathValue("metric")))
		return
	}
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the label selector cannot be read: "+err.Error())
		return
	}
	sizes, err := o.Source.Sizes()
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, err.Error())
		return
	}
	all := list{TypeMeta: metav1.TypeMeta{Kind: "ExternalMetricValueList", APIVersion: groupVersion}, Items: []value{}}
	for i := range sizes {
		if has := m.labels(&sizes[i]); selector.Matches(has) {
			all.Items = append(all.Items, value{m.name, has, metav1.NewTime(o.Now()), strconv.Itoa(sizes[i].Desired)})
		}
	}
	answer(w, http.StatusOK, all)
}

// find returns a metric, nil if it is not served.
func find(name string) *metric {
	for i := range served {
		if served[i].name == name {
			return &served[i]
		}
	}
	return nil
}

// refuse answers with an error as Kubernetes' clients expect it.
func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	answer(w, int(code), metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: message, Reason: reason, Code: code})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}
