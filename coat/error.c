#include "error.h"

int error_rank = -1;
