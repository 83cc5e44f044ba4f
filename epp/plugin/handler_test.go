package plugin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestStages(t *testing.T) {
	split := func(decode, prefill string, candidates int, decider epp.NamedDecider, on epp.OnNone) epp.Stages {
		row := epp.PrefillRow(prefill, candidates)
		row.Decider, row.OnNone = decider, on
		return epp.Stages{epp.DecodeRow(decode), row}
	}
	budget := func(of epp.Stages, ratio float64, burst int) epp.Stages {
		of[1].FallbackRatio, of[1].FallbackBurst = ratio, burst
		return of
	}
	rank := func(profile string, port uint16) epp.Stages {
		row := epp.DecodeRow(profile)
		row.Port = port
		return epp.Stages{row}
	}
	named := epp.NamedDecider{Name: "always", Decider: alwaysRemote}
	own := func(d epp.Decider) epp.NamedDecider { return epp.NamedDecider{Decider: d} }
	uncached := func(tokens int) epp.NamedDecider {
		return own(build[epp.Decider](t, "prefix-based-pd-decider", fmt.Sprintf("nonCachedTokens: %d", tokens)))
	}
	const disagg, old = "disagg-profile-handler", "pd-profile-handler"
	for _, test := range []struct {
		name, typ, parameters string
		profiles              string
		want                  epp.Stages
		err                   string
	}{
		{"single", "single-profile-handler", "", "mine", epp.Stages{epp.DecodeRow("mine")}, ""},
		{"single of two", "single-profile-handler", "", "a b", epp.Stages{}, "exactly one profile is run, there are 2 (a, b)"},
		{"single of none", "single-profile-handler", "", "", epp.Stages{}, "exactly one profile is run, there are 0 ()"},

		{"data parallel", "data-parallel-profile-handler", "", "mine", rank("mine", 8000), ""},
		{"data parallel, another port", "data-parallel-profile-handler", "primaryPort: 9000", "mine", rank("mine", 9000), ""},
		{"data parallel of two", "data-parallel-profile-handler", "", "a b", nil, "exactly one profile is run, there are 2 (a, b)"},

		{"no decider: never, unless forced", disagg, "", "prefill decode", split("decode", "prefill", 3, own(nil), epp.NoneSkips), ""},
		{"no prefill profile, and no decider", disagg, "", "decode", epp.Stages{epp.DecodeRow("decode")}, ""},
		{"decider", disagg, "deciders: {prefill: always}", "decode prefill", split("decode", "prefill", 3, named, epp.NoneSkips), ""},
		{"prefill first", disagg, "stageOrder: prefill-first", "decode prefill", split("decode", "prefill", 3, own(alwaysRemote), epp.NoneSkips), ""},
		{"extensions", disagg, "{prefillCandidates: 5, onNoPrefill: refuse}", "decode prefill", split("decode", "prefill", 5, own(nil), epp.NoneRefuses), ""},
		{"fallback budget", disagg, "{onNoPrefill: budget, fallbackRatio: 0.5, fallbackBurst: 3}", "decode prefill", budget(split("decode", "prefill", 3, own(nil), epp.NoneSkipsWithinBudget), 0.5, 3), ""},
		{"own names", disagg, "{profiles: {decode: d, prefill: p}, deciders: {prefill: always}}", "d p",
			split("d", "p", 3, named, epp.NoneSkips), ""},
		{"flat names", disagg, "{decodeProfile: d, prefillProfile: p, prefillDeciderPluginName: always, deciderPluginName: unknown}", "d p",
			split("d", "p", 3, named, epp.NoneSkips), ""},
		{"oldest name of the decider", disagg, "deciderPluginName: always", "decode prefill",
			split("decode", "prefill", 3, named, epp.NoneSkips), ""},

		{"decider without a prefill profile", disagg, "deciders: {prefill: always}", "decode", epp.Stages{},
			`no profile "prefill" for the prefill stage, there is decode`},
		{"named prefill profile is missing", disagg, "profiles: {prefill: p}", "decode", epp.Stages{},
			`no profile "p" for the prefill stage, there is decode`},
		{"all is wrong", disagg, "{profiles: {decode: d}, stageOrder: prefill-first}", "x y", epp.Stages{},
			`no profile "d" for the decode stage, there is x, y|no profile "prefill" for the prefill stage, there is x, y|` +
				`profile "x" is run by no stage|profile "y" is run by no stage`},
		{"both the same", disagg, "profiles: {decode: p, prefill: p}", "p", epp.Stages{}, `profile "p" cannot be that of both stages`},
		{"one too many", disagg, "", "decode more", epp.Stages{}, `profile "more" is run by no stage`},

		{"encode without a decider is not run", disagg, "", "decode encode", epp.Stages{epp.DecodeRow("decode")}, ""},
		{"encode", disagg, "deciders: {encode: always}", "encode decode", epp.Stages{epp.DecodeRow("decode"), epp.EncodeRow("encode", named)}, ""},
		{"encode, prefill and decode", disagg, "{profiles: {encode: e}, deciders: {encode: always, prefill: always}}", "decode e prefill",
			slices.Insert(split("decode", "prefill", 3, named, epp.NoneSkips), 1, epp.EncodeRow("e", named)), ""},
		{"encode and prefill first", disagg, "{stageOrder: prefill-first, encodeProfile: e, encodeDeciderPluginName: always}", "decode e prefill",
			slices.Insert(split("decode", "prefill", 3, own(alwaysRemote), epp.NoneSkips), 1, epp.EncodeRow("e", named)), ""},
		{"a decider without an encode profile", disagg, "deciders: {encode: always}", "decode", epp.Stages{},
			`no profile "encode" for the encode stage, there is decode`},

		{"old", old, "", "decode prefill", split("decode", "prefill", 3, uncached(25), epp.NoneSkips), ""},
		{"old, characters", old, "{threshold: 10, hashBlockSize: 5}", "decode prefill",
			split("decode", "prefill", 3, uncached(3), epp.NoneSkips), ""},
		{"old, zero is always", old, "threshold: 0", "decode prefill", split("decode", "prefill", 3, own(alwaysRemote), epp.NoneSkips), ""},
		{"old, decider", old, "{deciderPluginName: always, decodeProfile: d, prefillProfile: p}", "d p",
			split("d", "p", 3, named, epp.NoneSkips), ""},
		{"old, data parallel", old, "{primaryPort: 8000, threshold: 0}", "decode prefill",
			append(rank("decode", 8000), split("decode", "prefill", 3, own(alwaysRemote), epp.NoneSkips)[1]), ""},
		{"old, no prefill profile", old, "", "decode", epp.Stages{}, `no profile "prefill" for the prefill stage, there is decode`},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := build[epp.Handler](t, test.typ, test.parameters)
			got, err := h.Stages(strings.Fields(test.profiles))
			switch {
			case test.err == "" && err != nil:
				t.Error(err)
			case test.err != "" && (err == nil || err.Error() != strings.ReplaceAll(test.err, "|", "\n")):
				t.Errorf("error %v, want %s", err, test.err)
			case test.err == "" && !reflect.DeepEqual(got, test.want):
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

func TestDeciders(t *testing.T) {
	for _, test := range []struct {
		typ, parameters string
		asked           epp.Alternatives
		verdict         pd.Verdict
		reason          pd.Reason
	}{
		{"always-disagg-pd-decider", "", epp.Alternatives{}, pd.Remote, pd.Always},
		{"always-disagg-multimodal-decider", "", epp.Alternatives{Round: round(source(1)), Tokens: 1000}, pd.Local, pd.NoMedia},
		{"always-disagg-multimodal-decider", "", epp.Alternatives{Round: asking(7)}, pd.Remote, pd.Always},
		{"prefix-based-pd-decider", "", epp.Alternatives{Tokens: 1000}, pd.Local, pd.BelowThreshold},
		{"prefix-based-pd-decider", "nonCachedTokens: 16", epp.Alternatives{Tokens: 100, Cached: 84}, pd.Remote, pd.Uncached},
		{"prefix-based-pd-decider", "nonCachedTokens: 16", epp.Alternatives{Tokens: 100, Cached: 85}, pd.Local, pd.BelowThreshold},
		{"prefix-based-pd-decider", "{nonCachedTokens: 16, promptTokens: 101}", epp.Alternatives{Tokens: 100}, pd.Local, pd.ShortPrompt},
	} {
		ruling := build[epp.Decider](t, test.typ, test.parameters).Decide(&test.asked)
		if ruling.Verdict != test.verdict || ruling.Reason != test.reason {
			t.Errorf("%s {%s} %d of %d cached: %s %s, want %s %s", test.typ, test.parameters, test.asked.Cached, test.asked.Tokens, ruling.Verdict,
				ruling.Reason, test.verdict, test.reason)
		}
	}
}

func TestCharge(t *testing.T) {
	for parameters, want := range map[string]epp.Charge{
		"": {OutputRatio: 1.5},
		"{addEstimatedOutputTokens: true, outputRatio: 2, maxEstimatedOutputTokens: 512}": {Output: true, OutputRatio: 2, MaxOutput: 512},
	} {
		if got := build[epp.Charger](t, "inflight-load-producer", parameters).Charge(); got != want {
			t.Errorf("{%s}: %+v, want %+v", parameters, got, want)
		}
	}
}

// TestHeaderProfile: which profile a request asks for, and what its only stage is.
func TestHeaderProfile(t *testing.T) {
	for _, test := range []struct {
		name, parameters string
		headers          []string
		want             string
	}{
		{"named", "", []string{"epp-profile", "prefill"}, "prefill"},
		{"with blanks", "", []string{"epp-profile", " prefill "}, "prefill"},
		{"not named", "", nil, "decode"},
		{"blank", "", []string{"epp-profile", " "}, "decode"},
		{"another default", "defaultProfile: prefill", nil, "prefill"},
		{"another header", "headerName: X-Phase", []string{"x-phase", "prefill", "epp-profile", "encode"}, "prefill"},
	} {
		h := build[epp.Chooser](t, "header-profile-handler", test.parameters)
		if got := h.Choose(asked(test.headers...).Request); got != test.want {
			t.Errorf("%s: chooses %s, want %s", test.name, got, test.want)
		}
	}
	h := build[epp.Chooser](t, "header-profile-handler", "")
	prefill := epp.DecodeRow("prefill")
	prefill.Stage, prefill.Role = epp.StagePrefill, pd.RolePrefill
	want := map[string]epp.Stages{"decode": {epp.DecodeRow("decode")}, "prefill": {prefill}, "long": {epp.DecodeRow("long")}}
	if got := h.Choices([]string{"prefill", "decode", "long"}); !reflect.DeepEqual(got, want) {
		t.Errorf("choices %+v, want %+v", got, want)
	}
	for profiles, want := range map[string]string{"prefill decode": "decode", "prefill encode": "prefill"} {
		if got, err := h.Stages(strings.Fields(profiles)); err != nil || len(got) != 1 || got[0].Profile != want {
			t.Errorf("usual stages of %s: %+v, %v, want those of %s", profiles, got, err, want)
		}
	}
}
