package page

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func TestModels(t *testing.T) {
	for _, tc := range []struct {
		name, answer string
		want         []epp.Model
		err          string
	}{
		{"vLLM's, with an adapter", `{"object":"list","data":[{"id":"llama","object":"model","created":1,"owned_by":"vllm","root":"/m","parent":null,"permission":[]},` +
			`{"id":"sql","root":"/a","parent":"llama"}]}`, []epp.Model{{ID: "llama"}, {ID: "sql", Parent: "llama"}}, ""},
		{"none", `{"data":[]}`, []epp.Model{}, ""},
		{"no list", `{"error":"unauthorized"}`, nil, "the answer has no list of models"},
		{"no JSON", `<html>`, nil, "reading the list of models: invalid character '<' looking for beginning of value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Models{}.Read(strings.NewReader(tc.answer), nil)
			if text := textOf(err); text != tc.err || !reflect.DeepEqual(got, epp.Further{Models: tc.want}) {
				t.Errorf("%+v, %q; want %+v, %q", got, text, tc.want, tc.err)
			}
		})
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestGPU(t *testing.T) {
	const head = "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
	const other = "DCGM_FI_DEV_GPU_UTIL_MAX{gpu=\"0\"} 99\nDCGM_FI_DEV_GPU_TEMP{gpu=\"0\"} 98\n"
	const none = `the page has no utilization of a GPU of the pod "mine"`
	for _, tc := range []struct {
		name, page string
		want       float64 // -1 = unknown
		err        string
	}{
		{"one GPU", head + "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\"} 37\n", 0.37, ""},
		{"the busiest of two", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 37\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\"} 80\n", 0.8, ""},
		{"idle, without labels", other + "DCGM_FI_DEV_GPU_UTIL 0\n", 0, ""},
		{"of a node", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"other\"} 99\nDCGM_FI_DEV_GPU_UTIL{gpu=\"1\",pod=\"mine\"} 5\n", 0.05, ""},
		{"of other pods only", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",pod=\"other\"} 99\n", -1, none},
		{"no such family", other, -1, none},
		{"nothing", "", -1, none},
		{"impossible", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 101\n", -1, none},
		{"not a number", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} x\n", -1, "a series of DCGM_FI_DEV_GPU_UTIL cannot be read"},
		{"a line without end", strings.Repeat("x", 1<<20), -1, "reading the GPU metrics: bufio.Scanner: token too long"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found, err := GPU{}.Read(strings.NewReader(tc.page), &epp.Endpoint{Name: "mine-rank-0", Pod: "mine"})
			got := -1.0
			if value, known := (&epp.Load{Further: &found}).Attribute("dcgm-extractor", "GPUUtilization"); known {
				got = value
			}
			if text := textOf(err); got != tc.want || text != tc.err {
				t.Errorf("%v, %q; want %v, %q", got, text, tc.want, tc.err)
			}
		})
	}
}
