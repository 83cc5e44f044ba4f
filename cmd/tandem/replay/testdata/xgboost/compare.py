"""Trains XGBoost on the outcomes of requests as llm-d's latency predictor does, and compares its predictions with others.

Reads CSV from stdin: kind, waiting, usage, tokens, cached, running, ahead, came, p50, p90. The rows of a kind are in the order in which outcomes
became known. Every STEP rows a model is trained from scratch on the latest KEEP ones before, and predicts the next STEP. So XGBoost predicts
by outcomes that are at most as old as those that the other predictions go by. Writes JSON: by kind, the errors of both on the same rows.
"""
import csv, json, sys
import numpy as np
import xgboost as xgb

STEP, KEEP, FIRST = 250, 5000, 1000
# The parameters of llm-d's training server.
COUNT, TREES = 200, dict(max_depth=6, learning_rate=0.05, subsample=0.8, colsample_bytree=0.8, min_child_weight=5, gamma=0.2,
                         tree_method="hist", nthread=1, seed=1)

rows = {}
for line in csv.DictReader(sys.stdin):
    kind = line.pop("kind")
    rows.setdefault(kind, []).append([float(v) for v in line.values()])

def features(r):
    waiting, usage, tokens, cached, running, ahead = r[:, :6].T
    share = np.divide(cached, tokens, out=np.zeros_like(tokens), where=tokens > 0)
    return np.column_stack([usage, tokens, waiting, running, share, ahead, waiting > 0, (1 - share) * tokens, np.minimum(3, (4 * share).astype(int))])

def pinball(came, predicted, level):
    off = came - predicted
    return float(np.mean(np.maximum(level * off, (level - 1) * off)))

def measured(came, half, ninety):
    return {"mape": float(np.mean(np.abs(half - came) / came)), "mae": float(np.mean(np.abs(half - came))), "pinball90": pinball(came, ninety, 0.9),
            "within50": float(np.mean(came <= half)), "within90": float(np.mean(came <= ninety))}

out = {}
for kind, all_rows in rows.items():
    r = np.array(all_rows)
    if len(r) < FIRST + STEP:
        continue
    x, came = features(r), r[:, 6]
    # The objective of the server's default is a quantile; its chart takes the mean. Its median is the better of both by these errors.
    guess = {level: np.zeros(len(r)) for level in (0.5, 0.9)}
    for at in range(FIRST, len(r), STEP):
        low, end = max(0, at - KEEP), min(at + STEP, len(r))
        for level in guess:
            model = xgb.train(dict(TREES, objective="reg:quantileerror", quantile_alpha=level), xgb.DMatrix(x[low:at], came[low:at]), COUNT)
            guess[level][at:end] = model.predict(xgb.DMatrix(x[at:end]))
    t = slice(FIRST, len(r))
    out[kind] = {"rows": len(r) - FIRST, "xgboost": measured(came[t], np.maximum(guess[0.5][t], 1e-6), guess[0.9][t]), "ours": measured(came[t], r[t, 7], r[t, 8])}
json.dump(out, sys.stdout)
