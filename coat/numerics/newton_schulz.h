// Constants of the Newton-Schulz iterations that orthogonalize a matrix X in Muon. Each iteration computes A = X X^T,
// B = b A + c A A, X = a X + B X.
#pragma once

#define NEWTON_SCHULZ_ITERATIONS 5
#define NEWTON_SCHULZ_EPS 1e-7f // the initial X is divided by max(Frobenius norm of X, this number)

// Coefficients of every iteration (Jordan et al., Muon). Five iterations map the singular values of a matrix of
// Frobenius norm 1 into [0.68, 1.14] if they are at least 0.01. Smaller singular values are multiplied by at most 485.
#define NEWTON_SCHULZ_A 3.4445f
#define NEWTON_SCHULZ_B (-4.7750f)
#define NEWTON_SCHULZ_C 2.0315f
