package config

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Names that every configuration begins with. newVersion is what llm-d's guides have: the same fields, some in newer places, which
// are read in files of both versions.
const (
	apiVersion = "llm-d.ai/v1alpha1"
	newVersion = "llm-d.ai/v1"
	kind       = "EndpointPickerConfig"
)

// otherVersions are the API versions that are read as well, with the warning for each.
var otherVersions = map[string]string{
	"inference.networking.x-k8s.io/v1alpha1": "is the old name of " + apiVersion,
}

// document is an EndpointPickerConfig as the file has it. Fields without effect are decoded too, so that mistakes in them are
// reported.
type document struct {
	APIVersion         string         `yaml:"apiVersion"`
	Kind               string         `yaml:"kind"`
	FeatureGates       []string       `yaml:"featureGates"`
	Plugins            []pluginSpec   `yaml:"plugins"`
	SchedulingProfiles []profileSpec  `yaml:"schedulingProfiles"`
	DataLayer          dataLayerSpec  `yaml:"dataLayer"`
	FlowControl        *flowSpec      `yaml:"flowControl"`
	RequestHandler     requestHandler `yaml:"requestHandler"`
	SaturationDetector *reference     `yaml:"saturationDetector"` // older place of flowControl.saturationDetector
	Parser             *reference     `yaml:"parser"`             // older place of requestHandler.parsers
}

// pluginSpec is one plugin of the file.
type pluginSpec struct {
	Name       string    `yaml:"name"` // default: the type
	Type       string    `yaml:"type"`
	Parameters yaml.Node `yaml:"parameters"`
}

// reference names a plugin.
type reference struct {
	PluginRef string `yaml:"pluginRef"`
}

// profileSpec is one scheduling profile.
type profileSpec struct {
	Name    string      `yaml:"name"`
	Plugins []entrySpec `yaml:"plugins"`
}

// entrySpec is one plugin of a profile.
type entrySpec struct {
	PluginRef string   `yaml:"pluginRef"`
	Weight    *float64 `yaml:"weight"` // of a scorer; default 1
}

// dataLayerSpec says where endpoints and their metrics come from.
type dataLayerSpec struct {
	InjectDefaults *bool         `yaml:"injectDefaults"` // default true
	Sources        []sourceSpec  `yaml:"sources"`
	Discovery      discoverySpec `yaml:"discovery"`

	// State that replicas of llm-d's picker exchange.
	PeerDiscovery               *reference        `yaml:"peerDiscovery"`
	CrossReplicaSyncerPluginRef string            `yaml:"crossReplicaSyncerPluginRef"`
	CrossReplicaSyncInterval    *time.Duration    `yaml:"crossReplicaSyncInterval"`
	CrossReplicaPublishTimeout  *time.Duration    `yaml:"crossReplicaPublishTimeout"`
	CrossReplica                *crossReplicaSpec `yaml:"crossReplica"` // newer form of the three before
}

type sourceSpec struct {
	PluginRef  string      `yaml:"pluginRef"`
	Extractors []reference `yaml:"extractors"`
}

// discoverySpec names the plugin that finds the endpoints: directly, or in the newer form under endpoints.
type discoverySpec struct {
	PluginRef string     `yaml:"pluginRef"`
	Endpoints *reference `yaml:"endpoints"`
	Peers     *reference `yaml:"peers"` // newer form of peerDiscovery
}

type crossReplicaSpec struct {
	SyncerPluginRef string         `yaml:"syncerPluginRef"`
	SyncInterval    *time.Duration `yaml:"syncInterval"`
	PublishTimeout  *time.Duration `yaml:"publishTimeout"`
}

type requestHandler struct {
	Parsers []reference `yaml:"parsers"`
	Parser  *reference  `yaml:"parser"` // older form: only one
}

// flowSpec is llm-d's flow control.
type flowSpec struct {
	MaxBytes                    quantity       `yaml:"maxBytes"`
	MaxRequests                 quantity       `yaml:"maxRequests"`
	MaxFlowBytes                quantity       `yaml:"maxFlowBytes"`    // not llm-d's
	MaxFlowRequests             quantity       `yaml:"maxFlowRequests"` // not llm-d's
	DefaultRequestTTL           *time.Duration `yaml:"defaultRequestTTL"`
	NoEndpointRequestTTL        *time.Duration `yaml:"noEndpointRequestTTL"`
	DefaultPriorityBand         *bandSpec      `yaml:"defaultPriorityBand"`
	DefaultNegativePriorityBand *bandSpec      `yaml:"defaultNegativePriorityBand"`
	PriorityBands               []bandSpec     `yaml:"priorityBands"`
	UsageLimitPolicyPluginRef   string         `yaml:"usageLimitPolicyPluginRef"`
	SaturationDetector          *reference     `yaml:"saturationDetector"`
	EnableEviction              bool           `yaml:"enableEviction"`
}

type bandSpec struct {
	Priority          int            `yaml:"priority"`
	MaxBytes          quantity       `yaml:"maxBytes"`
	MaxRequests       quantity       `yaml:"maxRequests"`
	DefaultRequestTTL *time.Duration `yaml:"defaultRequestTTL"`
	FairnessPolicyRef string         `yaml:"fairnessPolicyRef"`
	OrderingPolicyRef string         `yaml:"orderingPolicyRef"`
}

// quantity is a number in the form of Kubernetes resources: 5000, 1k, 500M, 1Gi. "" = not given.
type quantity string

var quantityForm = regexp.MustCompile(`^[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?$`)

// UnmarshalYAML implements yaml.Unmarshaler.
func (q *quantity) UnmarshalYAML(n *yaml.Node) error {
	switch {
	case n.Kind != yaml.ScalarNode || !quantityForm.MatchString(n.Value):
		return errors.New("want a quantity like 5000, 500M or 1Gi, got " + nodeName(n))
	case strings.HasPrefix(n.Value, "-"):
		return errors.New("must not be negative, got " + n.Value)
	}
	*q = quantity(n.Value)
	return nil
}

// suffixes are the factors of a quantity's suffixes.
var suffixes = map[string]float64{"": 1, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}

// float returns the number. The text has quantityForm.
func (q quantity) float() float64 {
	number := strings.TrimRight(string(q), "numkMGTPEKi")
	factor, known := suffixes[string(q[len(number):])]
	if !known {
		number, factor = string(q), 1 // an exponent
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil { // out of range
		return math.Inf(1)
	}
	return v * factor
}
