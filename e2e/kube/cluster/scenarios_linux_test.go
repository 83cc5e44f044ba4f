package cluster

// scenarios is the table, in the order in which it is run. What works on the release llm leaves it as it was, until it is
// uninstalled; the last ones have releases of their own.
var scenarios = []scenario{
	scenarioInstall,
	scenarioThreshold,
	scenarioScale,
	scenarioKill,
	scenarioRoll,
	scenarioUpgrade,
	scenarioBadConfig,
	scenarioPartition,
	scenarioNodeGone,
	scenarioTwoReleases,
	scenarioDoctor,
	scenarioUninstall,
	scenarioElsewhere,
	scenarioEvacuate,
	scenarioPool,
	scenarioVLLM,
}
